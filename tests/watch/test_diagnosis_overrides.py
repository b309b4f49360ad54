"""What a diagnosis says to change: it changes something, and nothing else."""

import pytest

from lydite.watch.diagnosis import learning, progress, text
from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.rule import spelt
from lydite.watch.events import Evaluated

STEPS = tuple(range(1, 21))


def stage(settings=None, recipe=None, evaluations=None, **metrics):
    values = {name: tuple(map(float, each)) for name, each in metrics.items()}
    return Curves("rl", "rl", STEPS, values, evaluations or {}, settings or {}, 1, recipe or {})


def found(rules, name, curves):
    (rule,) = (rule for rule in rules if rule.name == name)
    return rule.apply(curves)


@pytest.mark.parametrize(
    ("settings", "override", "said"),
    [
        ({"objective": "grpo"}, "objective=+tis", "stages.1.objective=grpo+tis"),
        ({"objective": ["grpo", "kl"]}, "objective=+tis", "stages.1.objective=[grpo,kl,tis]"),
        (
            # The clip range and what else is set one by one must survive.
            {"objective": {"preset": "grpo", "clip": {"high": 0.3}}},
            "objective=+tis",
            "stages.1.objective.patches=[tis]",
        ),
        (
            {"objective": {"preset": "grpo", "patches": ["kl"]}},
            "objective=+tis",
            "stages.1.objective.patches=[kl,tis]",
        ),
        ({"group_size": 8}, "group_size=*2", "stages.1.group_size=16"),
    ],
)
def test_an_override_adds_to_what_is_there(settings, override, said):
    assert spelt(stage(settings), override) == said


@pytest.mark.parametrize(
    ("settings", "override"),
    [
        ({"objective": "grpo+tis"}, "objective=+tis"),
        ({"objective": ["grpo", "tis"]}, "objective=+tis"),
        ({"objective": {"preset": "grpo", "patches": ["tis"]}}, "objective=+tis"),
        ({"objective": "gspo"}, "objective=gspo"),
        ({"update": {"minibatches": 1}}, "update.minibatches=1"),
        ({"optimizer": {"max_grad_norm": None}}, "optimizer.max_grad_norm=*0.5"),
    ],
)
def test_an_override_that_would_change_nothing_is_not_said(settings, override):
    assert spelt(stage(settings), override) == ""


def test_limits_are_those_of_the_verifier_that_the_stage_has():
    recipe = {"verifier": {"limits": {"seconds": 2.0}}}
    own = {"verifier": {"limits": {"seconds": 5.0}}}
    override = "/verifier.limits.seconds=*2"
    assert spelt(stage({"verifier": None}, recipe), override) == "verifier.limits.seconds=4"
    assert spelt(stage(own, recipe), override) == "stages.1.verifier.limits.seconds=10"


ENTROPY = [max(0.02, 1.0 - 0.08 * n) for n in range(20)]
FLAT = [0.3 + 0.01 * (n % 2) for n in range(20)]


@pytest.mark.parametrize(("clipped", "helps"), [(0.0, False), (0.02, True)])
def test_a_wider_clip_is_advised_only_where_the_clip_holds_something(clipped, helps):
    curves = stage(
        {"objective": "grpo", "sampling": {"temperature": 1.0}},
        entropy=ENTROPY,
        accuracy=FLAT,
        clip_high=[clipped] * 20,
        distinct_completions=[0.1] * 20,
    )
    collapse = found(learning.RULES, "entropy_collapse", curves)
    same = found(text.RULES, "identical_samples", curves)
    for finding in (collapse, same):
        assert finding.overrides
        assert any("clip_higher" in each for each in finding.overrides) == helps
        assert ("clip bound" in finding.remedy) == helps


@pytest.mark.parametrize(("temperature", "said"), [(0.0, ()), (0.6, ("evaluation.samples=32",))])
def test_more_samples_are_advised_only_where_they_differ_and_are_more(temperature, said):
    scores = {str(n): float(n % 2) for n in range(40)}
    last = {**scores, "0": 1.0, "1": 0.0}
    measured = [
        Evaluated(task="t", step=step, avg=0.5, n=40, scores=each)
        for step, each in ((0, scores), (20, last))
    ]
    recipe = {"evaluation": {"samples": 8, "sampling": {"temperature": temperature}}}
    curves = stage({}, recipe, {"t": tuple(measured)})
    finding = found(progress.RULES, "no_improvement", curves)
    assert finding.overrides == said
    assert ("greedy" in finding.remedy) == (not said)


def test_a_course_that_does_not_move_is_a_guess_at_most() -> None:
    """How far the weights move is not in a log, so that the rate is too low is not known."""
    curves = stage(
        {"optimizer": {"lr": 1e-6}},
        entropy=[0.8, 0.81] * 10,
        accuracy=FLAT,
        lr=[1e-6] * 20,
        informative_groups=[0.6] * 20,
    )
    finding = found(learning.RULES, "learning_rate_too_low", curves)
    assert finding.confidence == "low"
    assert finding.overrides == ("stages.1.optimizer.lr=3e-06",)
