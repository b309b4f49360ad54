"""Phases of an RL stage: other problems and other rewards from a step on, resumed to the bit."""

import pytest
from test_rl import FakeEngine, FakeLearner, FakeVerifier

from lydite.config import UserError, validate
from lydite.pipeline.stages.rl import RLStage
from lydite.train.collecting import Phase
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Message, Outcome, Problem, Verdict
from lydite.verify.verifier import VerifierConfig


def prompts(*names):
    return [Prompt(Problem(n, n, (Message("user", n),), reference="1"), (1, 2)) for n in names]


class Watched(FakeVerifier):
    """Gives every completion the reward of its number, and keeps what it was asked."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def verify(self, problems, texts):
        self.asked += [(self.name, p.id) for p in problems[::4]]
        return [
            Verdict(Outcome.CORRECT, float(t.split("/")[1]), parts={self.name: 1.0}) for t in texts
        ]


def trainer(asked, later=(), steps=6, objective="grpo", per_step=1):
    config = RLConfig(
        steps=steps, prompts_per_step=per_step, group_size=4, objective=objective,
        sampling=SamplingConfig(max_tokens=10),
    )  # fmt: skip
    parts = RLParts(
        FakeEngine(), Watched("first", asked), FakeLearner(), config.build_objective(), 0.5
    )
    return RLTrainer(config, parts, FIRST, seed=0, later=later)


FIRST = prompts("a", "b", "c")


def phases(asked):
    return [
        Phase(2, FIRST, Watched("second", asked), {}),
        Phase(4, prompts("x", "y"), Watched("third", asked), {}),
    ]


def test_verifier_and_prompts_change_at_their_steps_and_no_other():
    asked = []
    rl = trainer(asked, phases(asked))
    told = [rl.step(step).metrics["phase"] for step in range(6)]
    assert told == [0, 0, 1, 1, 2, 2]
    assert [name for name, _ in asked] == [*["first"] * 2, *["second"] * 2, *["third"] * 2]
    ids = [problem for _, problem in asked]
    # With the same prompts the sampler goes on: the first three steps show each once.
    assert sorted(ids[:3]) == ["a", "b", "c"] and ids[3] in "abc" and sorted(ids[4:]) == ["x", "y"]
    plain = trainer([])
    assert "phase" not in plain.step(0).metrics


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_a_resumed_stage_asks_what_an_unbroken_one_asks(stop):
    whole, broken = [], []
    rl = trainer(whole, phases(whole))
    for step in range(6):
        rl.step(step)
    rl = trainer(broken, phases(broken))
    for step in range(stop):
        rl.step(step)
    state, tensors = rl.state(), rl.state_tensors()
    rl = trainer(broken, phases(broken))
    rl.load(tensors, state)
    for step in range(stop, 6):
        rl.step(step)
    assert broken == whole


def test_where_all_are_solved_the_next_phase_begins_at_once():
    asked = []
    later = [Phase(5, prompts("x"), Watched("late", asked), {})]
    objective = {"preset": "grpo", "group_filter": {"retire_at": 0.5}}
    rl = trainer(asked, later, objective=objective, per_step=3)
    rl.step(0)  # every verdict is correct: all three retire
    assert not rl.finished
    rl.step(1)
    assert asked[-1] == ("late", "x") and rl.finished


def stage(**changes):
    values = {"kind": "rl", "name": "align", "steps": 100, "task": "sums", **changes}
    return validate(RLStage, values, "stage")


def test_what_a_phase_does_not_say_stays():
    one = {"last_steps": 40, "verifier": "format"}
    two = {"last_share": 0.1, "task": "mixed"}
    found = stage(phases=[one, two])
    form = VerifierConfig.model_validate("format")
    assert found.spans == [(0, "sums", None), (60, "sums", form), (90, "mixed", form)]
    assert found.uses == found.verified == ("sums", "mixed")
    default = VerifierConfig.model_validate("math")
    scored = [(config.rewards[0].kind, tasks) for config, tasks in found.verifiers(default)]
    assert scored == [("math", ("sums",)), ("format", ("sums",)), ("format", ("mixed",))]
    assert stage().verifiers(default) == ((default, ("sums",)),)
    assert stage(verifier="format").verifiers(default) == ((form, ("sums",)),)


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ([{"task": "x"}], "give one of last_steps and last_share"),
        ([{"task": "x", "last_steps": 4, "last_share": 0.1}], "give one of last_steps and"),
        ([{"last_steps": 4}], "give task or verifier"),
        ([{"last_steps": 100, "task": "x"}], "would begin at step 0 of 100"),
        ([{"last_steps": 200, "task": "x"}], "would begin at step -100 of 100"),
        (
            [{"last_share": 0.1, "task": "x"}, {"last_steps": 20, "task": "y"}],
            "would begin at step 80 of 100, and what is before it at step 90",
        ),
    ],
)
def test_phases_without_sense_are_refused(phases, said):
    with pytest.raises(UserError, match=said):
        stage(phases=phases)
