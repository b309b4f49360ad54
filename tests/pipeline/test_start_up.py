"""A large task does not delay the first step: what is not needed yet is not done yet."""

import threading
from pathlib import Path

import pytest
from small_runs import MODEL, recipe, rl_stage, sft_stage, write

from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy, load_prompting
from lydite.model.render import encode, render_conversation
from lydite.pipeline import fit
from lydite.pipeline.fit import Fits
from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.rollout.select import local_engine
from lydite.train import sft
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.learner import Learner
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.train.sft import SFTConfig, examples_of
from lydite.types import Message, Outcome, Problem, Verdict
from lydite.watch.events import StepDone, read_events


def problem(number, text="add 1"):
    return Problem(f"p{number}", text, (Message("user", text),), worked="guess")


class Fit:
    """Notes what it is asked about; refuses texts with an x."""

    def __init__(self):
        self.tried = []

    def __call__(self, problems):
        self.tried += [p.id for p in problems]
        for p in problems:
            if "x" in p.question:
                raise UserError(f"{p.id} does not fit")


def test_a_small_task_is_tried_at_once_and_in_order():
    fits, tried = Fits(), Fit()
    fits.add(tried, [problem(n, "1" * (n % 7)) for n in range(fit.AT_ONCE)])
    assert tried.tried == [f"p{n}" for n in range(fit.AT_ONCE)]
    fits.go_on(1.0)
    fits.finish()
    assert len(tried.tried) == fit.AT_ONCE


def test_of_a_large_task_the_longest_are_tried_at_once_and_the_rest_beside_the_work():
    problems = [problem(n, "1") for n in range(fit.AT_ONCE + 200)] + [problem("long", "1" * 9)]
    fits, tried = Fits(), Fit()
    fits.add(tried, problems)
    assert len(tried.tried) == fit.AT_ONCE and tried.tried[0] == "plong"
    fits.go_on(0.0)
    assert len(tried.tried) > fit.AT_ONCE
    fits.finish()
    assert sorted(tried.tried) == sorted(p.id for p in problems)


def test_what_does_not_fit_is_said_beside_the_work_too():
    problems = [problem(n, "11") for n in range(fit.AT_ONCE)] + [problem("bad", "x")]
    fits = Fits()
    fits.add(Fit(), problems)
    with pytest.raises(UserError, match="pbad does not fit"):
        fits.go_on(0.0)
    fits = Fits()
    fits.add(Fit(), problems)
    with pytest.raises(UserError, match="pbad does not fit"):
        fits.finish()


def test_a_run_stops_early_for_what_would_not_fit_in_a_later_stage(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(fit, "AT_ONCE", 3)
    monkeypatch.setattr(fit, "SLICE", 1)
    rows = [f'{{"q": "add 1{n}", "a": "1"}}' for n in range(8)] + ['{"q": "é", "a": "1"}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    values = recipe([sft_stage(steps=60), rl_stage(task="later")], tmp_path)
    values["tasks"]["later"] = {
        "path": str(tmp_path / "rows.jsonl"), "prompt": "q", "reference": "a"
    }  # fmt: skip
    with pytest.raises(UserError, match=r"later.*'é'"):
        run_recipe(load_recipe(write(values, tmp_path / "recipe.yaml")), tmp_path / "run")
    steps = [e for e in read_events(tmp_path / "run/events.jsonl") if isinstance(e, StepDone)]
    assert 0 < len(steps) < 60 and {e.stage for e in steps} == {"sft"}


class Right:
    def verify(self, problems, texts):
        return [Verdict(Outcome.CORRECT, float(len(t))) for t in texts]

    def close(self):
        pass


def test_a_step_renders_its_own_prompts_and_has_the_next_ones_rendered_meanwhile():
    policy = load_policy(ModelConfig(**MODEL))
    rendered, sampled = [], []

    def render(p):
        rendered.append((p.id, threading.current_thread().name))
        return (5, 6)

    config = RLConfig(
        steps=3, prompts_per_step=4, group_size=2, sampling=SamplingConfig(max_tokens=4)
    )
    engine = local_engine(policy)
    generate = engine.generate

    def noted(requests):
        sampled.append([r.problem_id for r in requests])
        for thread in threading.enumerate():
            if thread.name == "render":
                thread.join(10)
        return generate(requests)

    engine.generate = noted
    learner = Learner(policy, config.optimizer, config.update)
    parts = RLParts(engine, Right(), learner, config.build_objective())
    prompts = [Prompt(problem(n), render) for n in range(1000)]
    trainer = RLTrainer(config, parts, prompts, seed=0)
    trainer.step(0)
    main, beside = (
        [name for name, thread in rendered if (thread == "render") is ahead]
        for ahead in (False, True)
    )
    assert main == sampled[0] and len(beside) == 4
    trainer.step(1)
    assert sampled[1] == beside and len(rendered) == 12  # nothing twice, and nothing else


def test_examples_are_rendered_when_they_are_asked_for(monkeypatch):
    policy = load_prompting(ModelConfig(**MODEL))
    problems = [problem(n, f"add {n % 10}") for n in range(50)]
    config = SFTConfig(steps=1)
    found = examples_of(policy, problems, config)
    eager = [examples_of(policy, [p], config)[0] for p in problems]
    count = []
    monkeypatch.setattr(
        sft, "render_conversation", lambda *given: count.append(1) or render_conversation(*given)
    )
    assert len(found) == 50 and not count
    assert found[-1] == eager[-1] and found[49] == eager[49] and len(count) == 1
    assert list(found[3:5]) == eager[3:5] and list(found) == eager and len(count) == 50
    with pytest.raises(IndexError):
        _ = found[50]


@pytest.mark.parametrize("special", [False, True])
def test_encoding_is_the_tokenizers_own(special):
    tokenizer = load_prompting(ModelConfig(**MODEL)).tokenizer
    texts = ["add 1 2", "", " sum  ", "<think>1</think><answer>", "é?", tokenizer.eos_token * 2]
    for text in texts:
        wanted = tokenizer(text, add_special_tokens=special)["input_ids"]
        assert encode(tokenizer, text, special) == wanted
    tokenizer.backend_tokenizer.enable_truncation(2)
    assert (
        encode(tokenizer, "add 1 2", special)
        == tokenizer("add 1 2", add_special_tokens=special)["input_ids"]
    )
