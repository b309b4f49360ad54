"""The benchmarks of objectives: their arithmetic by hand, and one real run of the smallest size."""

from __future__ import annotations

import importlib
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from small_runs import MODEL

from lydite.config import validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.saving import save_policy
from lydite.objective.presets import PRESETS
from lydite.tasks.generated import generate
from lydite.types import Completion, Group, Outcome, Problem, Verdict
from lydite.watch.samples import samples_of

FOLDER = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


def module(name: str) -> Any:
    return importlib.import_module(name)


def setting(**changes: Any) -> Any:
    shared = {"part": "p", "objective": "grpo", "lr": 1e-4, "seed": 1, "budget": 100}
    return module("objective_runs").Setting(**{**shared, **changes})


def run(heldout: list[tuple[float, float]], **changes: Any) -> Any:
    """A run with held-out accuracies at (tokens, accuracy); a step is 10 tokens."""
    rows = [{"step": t / 10, "tokens": t, "accuracy": a} for t, a in heldout]
    steps = changes.pop("steps", [])
    return module("objective_runs").Run(setting(**changes), steps, rows, [1.0], 0.0)


def test_a_crossing_lies_on_the_line_between_two_evaluations() -> None:
    found = run([(0, 0.2), (10, 0.6), (20, 1.0), (30, 0.7)]).crossing(0.8)
    assert found == pytest.approx({"step": 1.5, "tokens": 15.0})


def test_a_level_that_is_met_at_once_or_never() -> None:
    assert run([(0, 0.9), (10, 0.1)]).crossing(0.8) == {"step": 0, "tokens": 0}
    assert run([(0, 0.1), (10, 0.7)]).crossing(0.8) is None


def test_accuracy_over_the_budget_weighs_by_tokens() -> None:
    # (0 + 1)/2 over 10 tokens, then 1 over 30.
    assert run([(0, 0.0), (10, 1.0), (40, 1.0)]).mean_accuracy == pytest.approx(35 / 40)


def test_finished_runs_are_read_again_and_a_torn_line_is_not(tmp_path: Path) -> None:
    runs = module("objective_runs")
    path = tmp_path / "runs.jsonl"
    first, second = run([(0, 0.5)], seed=1), run([(0, 0.5)], seed=2)
    runs.Store(path).add(first)
    with path.open("a") as file:
        file.write('{"setting": {"part"')
    store = runs.Store(path)
    assert list(store.runs) == [first.setting.key]
    store.add(second)
    again = runs.Store(path)
    assert again.of([second.setting, first.setting]) == [second, first]
    assert again.of([setting(seed=3)]) == []


@pytest.mark.parametrize("change", ({"lr": 2e-4}, {"minibatches": 4}, {"stage": {"steps": 1}}))
def test_runs_with_other_settings_are_other_runs(change: dict[str, Any]) -> None:
    assert setting(**change).key != setting().key


def test_every_preset_is_compared_once_and_has_a_learning_rate() -> None:
    benchmark = module("objectives")
    assert sorted([*benchmark.COMPARED, *benchmark.OTHERS]) == sorted(PRESETS)
    untuned = set(PRESETS) - set(benchmark.TUNED)
    assert untuned == set(benchmark.NEAREST)
    assert set(benchmark.NEAREST.values()) <= set(benchmark.TUNED)


def test_the_best_rate_is_by_accuracy_over_the_budget_and_not_at_the_end() -> None:
    slow = run([(0, 0.0), (10, 0.0), (20, 1.0)], lr=1e-5)
    fast = run([(0, 0.0), (10, 1.0), (20, 0.9)], lr=1e-4)
    assert module("objectives").best_rate([slow, fast]) == 1e-4


def test_the_end_of_a_run_leaves_steps_without_a_figure_out() -> None:
    steps = [{"wrong": 99.0}] * 8 + [{"wrong": 4.0}, {}]
    late = module("objectives").late
    assert late(run([(0, 0.0)], steps=steps), "wrong") == 4.0
    assert math.isnan(late(run([(0, 0.0)], steps=steps), "right"))


def test_crossings_say_how_many_seeds_got_there() -> None:
    crossing = module("objectives").crossing
    got, other, never = run([(0, 0), (20, 1)]), run([(0, 0), (40, 1)]), run([(0, 0), (20, 0.1)])
    assert crossing([got, other], 0.5, "tokens") == "15.0 (10.0 to 20.0)"
    assert crossing([got, never], 0.5, "tokens") == "10.0 (1 of 2)"
    assert crossing([never], 0.5, "tokens") == "never"


def test_lengths_are_of_right_and_of_wrong_answers() -> None:
    problem = Problem("p", "q", ())
    outcomes = [(3, Outcome.CORRECT), (5, Outcome.WRONG), (8, Outcome.UNPARSEABLE)]
    completions = [
        Completion("p", n, (1,), (7,) * size, (0.0,) * size, (1,) * size, "stop", "x")
        for n, (size, _) in enumerate(outcomes)
    ]
    verdicts = [Verdict(outcome, 0.0) for _, outcome in outcomes]
    rows = samples_of(Group(problem, completions, verdicts), [0.0] * 3, 1)
    result = importlib.import_module("lydite.train.loop").StepResult({"entropy": 0.5}, rows)
    found = module("objective_runs").figures(result, 16.0)
    assert found == {"entropy": 0.5, "tokens": 16.0, "right": 3.0, "wrong": 6.5}


def test_the_first_letter_alone_is_paid_for() -> None:
    tasks = module("objective_tasks")
    even, odd = (Problem(n, "q", (), reference=n) for n in ("12", "7"))
    texts = ["<think>A;1</think>", "<think>A;1</think>", "<think>B", "A", ""]
    found = tasks.FirstLetter().verify([even, odd, odd, even, even], texts)
    assert [v.reward for v in found] == [1.0, 0.0, 1.0, 1.0, 0.0]


def test_a_tail_says_whether_the_guess_was_right() -> None:
    tasks = module("objective_tasks")
    rng = random.Random(0)
    lengths = []
    for problem in generate(["sum"], 200, 3, "train"):
        text = tasks.with_tail(problem, rng).worked
        right = text[len("<think>")] == tasks.letter(problem)
        tail = text.partition("</think>")[0].rpartition(tasks.letter(problem))[2]
        assert set(tail) == {tasks.HOLDS if right else tasks.FAILS}
        lengths.append(len(tail))
    assert max(lengths) <= tasks.LONGEST + 1
    assert sum(lengths) / len(lengths) == pytest.approx(1 / tasks.STOP, rel=0.25)


def test_a_line_is_read_between_its_points() -> None:
    pytest.importorskip("matplotlib")
    plots = module("objective_plots")
    assert plots.at([0, 10, 10, 20], [0, 1, 2, 4], 5) == 0.5
    assert plots.at([0, 10, 10, 20], [0, 1, 2, 4], 15) == 3
    assert math.isnan(plots.at([0, 1], [0, 1], 2))
    assert plots.smoothed([1.0, math.nan, 3.0], 3) == [1.0, 2.0, 3.0]


def test_the_deviation_of_token_ratios_is_over_all_tokens() -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {"length": 1.0, "sum": 3.0, "squares": 9.0},
        {"length": 3.0, "sum": 3.0, "squares": 3.0},
    ]
    # Log-ratios 3, 1, 1, 1: mean 1.5, variance 0.75.
    assert module("objective_plots")._token_std(rows) == pytest.approx(math.sqrt(0.75))


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """The quickstart's RL stage on a model that knows nothing."""
    policy = load_policy(validate(ModelConfig, {**MODEL, "context": 96}))
    save_policy(policy, tmp_path / "model")
    bench = module("objective_runs").Bench.quickstart(tmp_path / "model")
    bench.problems, bench.heldout = bench.problems[:8], bench.heldout[:3]
    return bench


SMALL = {"prompts_per_step": 2, "group_size": 4, "sampling": {"max_tokens": 6}}


@pytest.mark.parametrize("preset", ("grpo", "ppo"))
def test_a_run_trains_until_its_budget_is_spent(tiny: Any, preset: str) -> None:
    found = tiny.run(setting(objective=preset, budget=60, every=30, stage=SMALL))
    tokens = found.column("tokens")
    assert tokens[-1] >= 60 > tokens[-2]
    assert [row["tokens"] for row in found.heldout][::2] == [0, tokens[-1]]
    assert len(found.scores) == 3
    assert json.loads(json.dumps(found.steps)) == found.steps


def test_a_ratio_is_taken_to_the_policy_that_sampled(tiny: Any) -> None:
    effects = module("objective_effects")
    still = {**SMALL, "optimizer": {"lr": 1e-12}}
    rows = effects.ratios(tiny, setting(stage=still)).steps
    assert len(rows) == 8
    for row in rows:
        assert row["sum"] == pytest.approx(0, abs=1e-4)
        assert row["squares"] == pytest.approx(0, abs=1e-6)


def test_an_override_leaves_the_rest_of_its_section_as_the_recipe_has_it(tiny: Any) -> None:
    changes = {"optimizer": {"warmup_steps": 0}, "objective": {"preset": "grpo", "clip_high": 0.5}}
    stage = tiny.stage(setting(lr=7e-5, stage=changes))
    recipe = tiny.recipe.stages[-1].optimizer
    expected = {"lr": 7e-5, "warmup_steps": 0, "schedule": "constant"}
    assert stage.optimizer == recipe.model_copy(update=expected)
    assert stage.build_objective().clip_high == 0.5
