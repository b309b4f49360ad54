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


def still(**more):
    return stage(
        {"optimizer": {"lr": 1e-6}, **more.pop("settings", {})},
        entropy=[0.8, 0.81] * 10,
        accuracy=FLAT,
        lr=[1e-6] * 20,
        informative_groups=[0.6] * 20,
        **more,
    )


def test_without_the_weights_movement_a_course_that_stands_is_a_guess_at_most():
    finding = found(learning.RULES, "learning_rate_too_low", still())
    assert finding.confidence == "low"
    assert finding.overrides == ("stages.1.optimizer.lr=3e-06",)


@pytest.mark.parametrize(
    ("ratio", "updates", "confidence"),
    [
        (1e-8, {}, "high"),  # 20 steps: 2e-7
        (1e-5, {}, "low"),
        (1e-4, {}, None),  # The weights did move, so something else stands still.
        (1e-6, {"minibatches": 4, "epochs": 2}, "low"),  # 8 steps a rollout: 1.6e-4
        (1e-6, {}, "high"),
    ],
)
def test_how_far_the_weights_moved_decides(ratio, updates, confidence):
    curves = still(update_ratio=[ratio] * 20, settings={"update": updates})
    finding = found(learning.RULES, "learning_rate_too_low", curves)
    assert (finding and finding.confidence) == confidence


@pytest.mark.parametrize(("ratio", "confidence"), [(1e-3, "medium"), (0.05, "high")])
def test_a_fall_after_steps_that_moved_the_weights_far_is_the_rates_for_sure(ratio, confidence):
    rising_then_gone = [0.1 * n for n in range(1, 9)] + [0.0] * 12
    curves = stage(accuracy=rising_then_gone, update_ratio=[ratio] * 20)
    finding = found(learning.RULES, "learning_rate_too_high", curves)
    assert finding.confidence == confidence
    assert any("update_ratio" in line for line in finding.evidence)


@pytest.mark.parametrize(
    ("settings", "corrected", "overrides"),
    [
        ({"objective": "grpo"}, False, ("stages.1.objective=grpo+tis",)),
        ({"objective": "grpo+tis"}, True, ("stages.1.objective=grpo+icepop",)),
        ({"objective": ["grpo", "tis", "kl"]}, True, ("stages.1.objective=[grpo,kl,icepop]",)),
        (
            {"objective": {"preset": "grpo", "correction": "tis"}, "staleness": 4},
            True,
            ("stages.1.staleness=2", "stages.1.objective.correction=icepop"),
        ),
        ({"objective": "grpo+icepop"}, True, ()),
    ],
)
def test_a_correction_that_is_on_is_not_advised_again(settings, corrected, overrides):
    more = {"correction": [0.9] * 20} if corrected else {}
    curves = stage(settings, kl_behaviour=[0.05] * 20, **more)
    finding = found(learning.RULES, "sampler_mismatch", curves)
    assert finding.overrides == overrides
    assert ("on already" in finding.remedy) == corrected
    assert ("lag up to 4" in finding.cause) == ("staleness" in settings)


def test_corrections_that_are_advised_are_accepted():
    from lydite.objective.objective import Objective

    for spec in (
        "grpo+icepop",
        ["grpo", "kl", "icepop"],
        {"preset": "grpo", "correction": "icepop"},
    ):
        assert Objective.parse(spec).correction.kind == "icepop"


def measured(samples, spread):
    """100 problems, half of them up by ``spread`` and half down."""
    start = {str(n): 0.5 for n in range(100)}
    end = {name: 0.5 + spread * (-1) ** int(name) for name in start}
    events = [
        Evaluated(task="t", step=step, avg=0.5, n=100, k=samples, scores=scores)
        for step, scores in ((0, start), (20, end))
    ]
    recipe = {"evaluation": {"samples": samples, "sampling": {"temperature": 1.0}}}
    return stage({}, recipe, {"t": tuple(events)})


def test_how_many_more_samples_would_show_a_change():
    """Gaps of ±1/4: their variance is 100/99·0.0625, less than 0.1458 = (0.25 + 0.1875)/3, which
    two means of 4 samples have by themselves. For ±1% with t = 1.984 (99): 0.1458·4·1.984²/(100·
    1e-4) = 229.6.
    """
    finding = found(progress.RULES, "no_improvement", measured(4, 0.25))
    assert finding.overrides == ("evaluation.samples=230",)
    assert "about 230 samples of each in place of 4" in finding.evidence[1]


def test_where_problems_differ_too_much_no_number_of_samples_would():
    """Gaps of ±1/2 with 64 samples: nearly all of it lies between problems."""
    finding = found(progress.RULES, "no_improvement", measured(64, 0.5))
    assert finding.overrides == () and "samples of each in place" not in finding.evidence[1]
    assert "more samples of the same ones cannot tell" in finding.remedy
    assert "about 9943 problems" in finding.evidence[1]


def test_what_is_paid_less_often_than_it_is_right_is_hardly_gamed():
    from lydite.watch.diagnosis import rewards

    first = {str(n): 1.0 for n in range(100)}
    last = {name: float(int(name) >= 30) for name in first}
    events = tuple(
        Evaluated(task="t", step=step, avg=avg, n=100, scores=scores)
        for step, avg, scores in ((0, 0.85, first), (20, 0.7, last))
    )
    rising = [0.02 * n for n in range(20)]
    for more, confidence in (([0.5 + r for r in rising], "high"), (rising, "low")):
        curves = stage({}, {}, {"t": events}, reward=rising, accuracy=more)
        assert found(rewards.RULES, "verifier_gamed", curves).confidence == confidence
