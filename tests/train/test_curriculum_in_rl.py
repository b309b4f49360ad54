"""A curriculum in the loop: with refill, phases, sampling ahead, and resumed to the bit."""

import json
from dataclasses import replace

import pytest
from test_ahead import Parity, Spy
from test_rl import FakeEngine, FakeLearner, FakeVerifier

from lydite.config import UserError, validate
from lydite.pipeline.stages.rl import RLStage
from lydite.rollout.curriculum import CurriculumConfig
from lydite.rollout.select import local_engine
from lydite.train.collecting import Phase
from lydite.train.distill import DistillConfig
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.learner import Learner
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Message, Problem

MEDIUM = ["m0", "m1", "m2"]
TABLE = {
    **{f"easy{i}": [1, 1, 1, 1] for i in range(8)},
    **{f"hard{i}": [0, 0, 0, 0] for i in range(8)},
    **{name: [1, 0, 0, 1] for name in MEDIUM},
}


def prompts(names):
    return [Prompt(Problem(n, n, (Message("user", n),), reference="1"), (1, 2)) for n in names]


def trainer(curriculum, objective="grpo", later=(), steps=12):
    config = RLConfig(
        steps=steps, prompts_per_step=4, group_size=4, objective=objective,
        sampling=SamplingConfig(max_tokens=10), curriculum=curriculum,
    )  # fmt: skip
    objective = config.build_objective()
    parts = RLParts(FakeEngine(), FakeVerifier(TABLE), FakeLearner(), objective, 0.5)
    return RLTrainer(config, parts, prompts(TABLE), seed=0, later=later), parts


def test_it_draws_what_teaches_and_says_what_it_expects():
    plain, aimed = (
        [rl.step(step).metrics for step in range(40)][8:]
        for rl, _ in (trainer(None, steps=40), trainer(CurriculumConfig(power=2), steps=40))
    )

    def mean(told, name):
        return sum(metrics[name] for metrics in told) / len(told)

    share = mean(aimed, "informative_groups")
    assert share > 2 * mean(plain, "informative_groups")
    assert mean(aimed, "informative_expected") == pytest.approx(share, abs=0.15)
    assert 0.4 < aimed[-1]["accuracy_estimate"] < 0.6
    assert "informative_expected" not in plain[-1]


def test_with_refill_a_step_meets_no_problem_twice_while_others_wait():
    rl, parts = trainer(CurriculumConfig(), "grpo+dynamic_sampling")
    for step in range(6):
        rl.step(step)
        asked = [(name, first) for name, at, first in parts.engine.asked if at == step]
        # Three teach and four are wanted: all are met once, and then some again, with other noise.
        assert {name for name, _ in asked[: len(TABLE)]} == set(TABLE)
        assert len(asked) == len(set(asked)) > len(TABLE)


def test_retired_problems_stay_away():
    rl, parts = trainer(CurriculumConfig(), "grpo+retire_solved")
    seen = []
    for step in range(12):
        rl.step(step)
        asked = [name for name, at, _ in parts.engine.asked if at == step]
        assert not set(asked) & set(seen)
        seen += [name for name in asked if name.startswith("easy")]
    assert seen


def test_resumed_it_draws_what_it_would_have():
    whole, whole_parts = trainer(CurriculumConfig(half_life=2))
    for step in range(5):
        whole.step(step)
    saved = json.loads(json.dumps(whole.state()))
    again, parts = trainer(CurriculumConfig(half_life=2))
    again.load({}, saved)
    for step in range(5, 12):
        whole.step(step)
        again.step(step)
    assert parts.engine.asked == [call for call in whole_parts.engine.asked if call[1] >= 5]
    assert again.state() == whole.state()


def test_a_new_phase_with_other_problems_begins_anew_and_one_with_the_same_goes_on():
    same = prompts(TABLE)
    config = RLConfig(
        steps=9, prompts_per_step=4, group_size=4, curriculum=CurriculumConfig(),
        sampling=SamplingConfig(max_tokens=10),
    )  # fmt: skip
    parts = RLParts(FakeEngine(), FakeVerifier(TABLE), FakeLearner(), config.build_objective(), 0.5)
    later = [Phase(3, same, FakeVerifier(TABLE)), Phase(6, prompts(MEDIUM), FakeVerifier(TABLE))]
    rl = RLTrainer(config, parts, same, seed=0, later=later)
    sizes = []
    for step in range(9):
        rl.step(step)
        sizes.append(len(rl.state()["curriculum"]["seen"]))
    assert sizes == [*sorted(sizes[:6]), 3, 3, 3]
    saved = json.loads(json.dumps(rl.state()))
    other = RLTrainer(config, replace(parts, engine=FakeEngine()), same, seed=0, later=later)
    other.load({}, saved)
    assert other.state() == rl.state()


def test_sampled_ahead_it_is_the_same_run_when_resumed(tiny):
    def start():
        policy = tiny()
        config = RLConfig(
            steps=6, prompts_per_step=2, group_size=4, staleness=1, objective="grpo+tis",
            sampling=SamplingConfig(max_tokens=6), optimizer=OptimizerConfig(lr=0.02),
            curriculum=CurriculumConfig(half_life=4),
        )  # fmt: skip
        learner = Learner(policy, config.optimizer, config.update)
        parts = RLParts(
            local_engine(policy), Parity(), learner, config.build_objective(), ahead=Spy(policy)
        )
        problems = [Problem(f"p{i}", "q", (Message("user", "q"),)) for i in range(5)]
        shown = [Prompt(p, (5, 6 + i)) for i, p in enumerate(problems)]
        return RLTrainer(config, parts, shown, seed=0)

    whole = start()
    drawn = []
    for step in range(6):
        if step == 3:
            tensors = {name: t.clone() for name, t in whole.state_tensors().items()}
            state = json.loads(json.dumps(whole.state()))
        drawn.append([row.problem_id for row in whole.step(step).samples])
    whole.close()
    again = start()
    again.load(tensors, state)
    assert drawn[3:] == [
        [row.problem_id for row in again.step(step).samples] for step in range(3, 6)
    ]
    assert again.state() == whole.state()
    again.close()


def test_mistakes_are_one_line():
    task = [Problem("a", "a", (), fields={"rate": 7})]
    stage = validate(RLStage, {"kind": "rl", "name": "rl", "curriculum": {"pass_rate": "rate"}})
    with pytest.raises(UserError, match=r"stages\.rl\.curriculum\.pass_rate: task train: 'rate'"):
        stage.check_task("train", task)
    with pytest.raises(UserError, match=r"curriculum\.explore.*greater than 0"):
        validate(RLStage, {"kind": "rl", "curriculum": {"explore": 0}})
    with pytest.raises(UserError, match="curriculum: it goes by pass rates"):
        validate(DistillConfig, {"reward_weight": 0, "verify": False, "curriculum": {}})
