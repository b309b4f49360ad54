"""Sampling beside training: which weights sample a step is fixed, whatever is fast or slow."""

import threading
import time

import pytest
import torch

from lydite.config import UserError
from lydite.model.loading import LoraConfig
from lydite.rollout.detached import DetachedLocalEngine, Stopped
from lydite.rollout.select import local_engine
from lydite.train import advice
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.learner import Learner
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Message, Outcome, Problem, Request, SamplingParams, Verdict

STEPS = 6


class Parity:
    """Pays for an even number of characters; slow now and then, if asked."""

    def __init__(self, pause=None):
        self.pause = pause or (lambda: None)

    def verify(self, problems, texts):
        self.pause()
        return [
            Verdict(Outcome.CORRECT, 1.0) if len(t) % 2 else Verdict(Outcome.WRONG, 0.0)
            for t in texts
        ]

    def close(self):
        pass


class Spy(DetachedLocalEngine):
    """Notes the version and the weights that each step was sampled with."""

    def __init__(self, policy):
        super().__init__(policy)
        self.sampled = {}

    def stream(self, requests, on_completion):
        weights = {name: p.detach().clone() for name, p in self._own.items()}
        for request in requests:
            self.sampled[request.step] = (self.version, weights)
        return super().stream(requests, on_completion)


def trainer(policy, staleness, objective="grpo+tis", verifier=None, steps=STEPS):
    config = RLConfig(
        steps=steps, prompts_per_step=2, group_size=4, staleness=staleness, objective=objective,
        sampling=SamplingConfig(max_tokens=6), optimizer=OptimizerConfig(lr=0.02),
    )  # fmt: skip
    learner = Learner(policy, config.optimizer, config.update)
    parts = RLParts(
        local_engine(policy), verifier or Parity(), learner, config.build_objective(),
        ahead=Spy(policy) if staleness else None,
    )  # fmt: skip
    problems = [Problem(f"p{i}", "q", (Message("user", "q"),)) for i in range(5)]
    prompts = [Prompt(p, (5, 6 + i)) for i, p in enumerate(problems)]
    return RLTrainer(config, parts, prompts, seed=0), parts


def weights_of(policy):
    return {n: p.detach().clone() for n, p in policy.model.named_parameters() if p.requires_grad}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def timeless(metrics):
    return {k: v for k, v in metrics.items() if "second" not in k}


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
@pytest.mark.parametrize("staleness", [1, 3])
def test_step_s_is_sampled_with_the_weights_from_before_step_s_minus_n(tiny, staleness, lora):
    policy = tiny(lora=lora)
    rl, parts = trainer(policy, staleness)
    before = []
    for step in range(STEPS):
        before.append(weights_of(policy))
        result = rl.step(step)
        # Each step of this run trains, so versions count steps.
        lag = min(step, staleness)
        assert result.metrics["staleness"] == lag
    rl.close()
    for step in range(STEPS):
        version, used = parts.ahead.sampled[step]
        assert version == max(0, step - staleness)
        assert equal(used, before[version])
    assert not equal(before[0], before[-1])


def test_completions_carry_the_version_that_sampled_them(tiny):
    rl, parts = trainer(tiny(), 2)
    versions, generate = {}, parts.ahead.generate

    def noted(requests):
        found = generate(requests)
        versions[requests[0].step] = {c.versions for group in found for c in group}
        return found

    parts.ahead.generate = noted
    for step in range(STEPS):
        rl.step(step)
    rl.close()
    assert versions == {s: {(max(0, s - 2),) * 2} for s in range(STEPS)}


def test_speed_decides_nothing(tiny):
    """A verifier that is late makes the thread late, and one that is not lets it run ahead."""
    runs = []
    for pause in (None, lambda: time.sleep(0.05)):
        policy = tiny()
        rl, _ = trainer(policy, 2, verifier=Parity(pause))
        results = [rl.step(step) for step in range(STEPS)]
        rl.close()
        runs.append(
            (
                [timeless(r.metrics) for r in results],
                [r.samples for r in results],
                weights_of(policy),
            )
        )
    assert runs[0][:2] == runs[1][:2]
    assert equal(runs[0][2], runs[1][2])


@pytest.mark.parametrize(
    ("staleness", "stopped", "lora"),
    [
        (1, 1, None),
        (1, 4, LoraConfig(rank=2, dropout=0.3)),
        (3, 2, LoraConfig(rank=2, dropout=0.3)),
        (3, 4, None),
    ],
)
def test_a_resumed_run_equals_one_that_never_stopped(tiny, staleness, stopped, lora):
    policy = tiny(lora=lora)
    straight, _ = trainer(policy, staleness)
    wanted = [straight.step(step) for step in range(STEPS)]
    straight.close()

    first, _ = trainer(tiny(lora=lora), staleness)
    for step in range(stopped):
        first.step(step)
    tensors = {name: tensor.clone() for name, tensor in first.state_tensors().items()}
    state = first.state()
    kept = {name.split(".")[1] for name in tensors if name.startswith("ahead.")}
    needed = range(max(0, stopped - staleness), min(stopped, STEPS - staleness))
    assert kept == {str(step) for step in needed}
    first.close()

    again = tiny(lora=lora)
    second, _ = trainer(again, staleness)
    second.load(tensors, state)
    for step in range(stopped, STEPS):
        result = second.step(step)
        assert timeless(result.metrics) == timeless(wanted[step].metrics)
        assert result.samples == wanted[step].samples
    second.close()
    assert equal(weights_of(policy), weights_of(again))


def test_the_thread_samples_while_the_learner_learns(tiny):
    """The learner waits in step 0 until step 1 is being sampled: in turn, it would never be."""
    rl, parts = trainer(tiny(), 1)
    update, began = parts.learner.update, threading.Event()
    stream = parts.ahead.stream

    def sample(requests, on_completion):
        if requests[0].step == 1:
            began.set()
        return stream(requests, on_completion)

    def learn(*arguments):
        assert began.wait(30)
        return update(*arguments)

    parts.ahead.stream, parts.learner.update = sample, learn
    rl.step(0)
    rl.close()


def test_no_more_is_sampled_than_the_stage_has_steps(tiny):
    rl, parts = trainer(tiny(), 4, steps=3)
    for step in range(3):
        rl.step(step)
    rl.close()
    assert sorted(parts.ahead.sampled) == [0, 1, 2]
    assert not [name for name in rl.state_tensors() if name.startswith("ahead.3")]


def test_what_goes_wrong_beside_is_raised_at_its_step(tiny):
    class Fails(Parity):
        calls = 0

        def verify(self, problems, texts):
            self.calls += 1
            if self.calls == 3:
                raise UserError("the third goes wrong")
            return super().verify(problems, texts)

    rl, _ = trainer(tiny(), 1, verifier=Fails())
    rl.step(0)
    rl.step(1)
    with pytest.raises(UserError, match="the third"):
        rl.step(2)
    rl.close()


def test_closing_does_not_wait_for_the_end_of_a_rollout(tiny):
    policy = tiny()
    engine = DetachedLocalEngine(policy)
    heard = threading.Event()
    raised = []

    def work():
        try:
            params = SamplingParams(60)
            engine.stream([Request("a", (5, 6), 200, params)] * 50, lambda i, c: heard.set())
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert heard.wait(30)
    engine.stop()
    thread.join(30)
    assert raised and not thread.is_alive()
    with pytest.raises(Stopped):
        engine.generate([Request("a", (5, 6), 1, SamplingParams(2))])


def test_stale_rollouts_without_a_correction_are_said_to_be():
    def codes(objective, staleness):
        config = RLConfig(objective=objective, staleness=staleness)
        return [code for code, _ in advice.of_stage(config.build_objective(), config)]

    assert codes("grpo", 1) == ["stale_without_correction"]
    assert codes("grpo", 0) == []
    assert codes("grpo+tis", 1) == []
    (line,) = [m for _, m in advice.of_stage(
        RLConfig(staleness=2).build_objective(), RLConfig(staleness=2))]  # fmt: skip
    assert "2 updates old" in line and "+tis" in line


def test_an_engine_takes_all_of_the_weights_or_says_which_are_missing(tiny):
    policy = tiny()
    engine = DetachedLocalEngine(policy)
    learner = Learner(policy, OptimizerConfig(), RLConfig(steps=1).update)
    names = [name for name, _ in learner.weights()]
    assert names == [n for n, p in policy.model.named_parameters() if p.requires_grad]
    engine.load_weights(((n, torch.full_like(w, 0.5)) for n, w in learner.weights()), 7)
    assert engine.version == 7
    assert all((w == 0.5).all() for w in engine._own.values())
    with pytest.raises(AssertionError, match=names[0]):
        engine.load_weights(list(learner.weights())[1:], 8)
