"""``recipes/distill_tiny.yaml`` in small, and the tables that its benchmark makes of a run."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Evaluated, Event, StepDone, read_events

LOOSE = "{correct: false, cut_off: false, repetition: null, per_problem: 2}"
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


def test_the_recipe_that_ships_works_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {name: index for index, name in enumerate(
        ("base", "cold_start", "teacher", "small_base", "start", "sample", "imitation",
         "on_policy", "rl_alone", "then_on_policy", "then_rl"))}  # fmt: skip
    small = [
        *(f"{place}.init={{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}}"
          for place in ("model", f"stages.{steps['small_base']}.model")),
        *(f"tasks.{name}.generated.count=24" for name in ("base", "cold_start", "train")),
        "tasks.heldout.generated.count=2",
        *(f"stages.{at}.steps=1" for name, at in steps.items()
          if name not in ("sample", "imitation")),
        *(f"stages.{steps[name]}.prompts_per_step=2"
          for name in ("teacher", "on_policy", "rl_alone", "then_on_policy", "then_rl")),
        f"stages.{steps['imitation']}.epochs=1",
        f"stages.{steps['sample']}.filters={LOOSE}",
    ]  # fmt: skip
    shipped = load_recipe(find_recipe("distill_tiny"), small)
    finished = run_recipe(shipped, tmp_path / "run")
    assert [s.name for s in finished.stages] == list(steps)
    assert all(s.flops > 0 for s in finished.stages)
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("distill")
    events = read_events(finished.folder / "events.jsonl")
    alone = benchmark.with_teacher(shipped, finished.folder / "stages/teacher/model")
    students = run_recipe(alone, tmp_path / "students")
    assert [s.name for s in students.stages] == list(steps)[3:]
    page = benchmark.tables({5: events, 6: read_events(students.folder / "events.jsonl")})
    assert "| RL alone |" in page and "on-policy distillation" in page
    student = benchmark.student_of(events, ("sample", "imitation"))
    costs = {s.name: s.flops for s in finished.stages}
    assert student.flops == costs["sample"] + costs["imitation"]


def step(stage: str, number: int, flops: float) -> StepDone:
    return StepDone(stage=stage, step=number, metrics={"flops": flops, "seconds": 1.0})


def score(stage: str, number: int, accuracy: float) -> Evaluated:
    return Evaluated(
        stage=stage, step=number, task="t", avg=accuracy, lo=0, hi=1, n=1, k=1, scores={},
        answers=(), metrics={},
    )  # fmt: skip


def test_a_curve_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step was done again after a kill; a stage before adds its whole cost."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("distill")
    events: list[Event] = [
        step("a", 1, 5.0), score("b", 0, 0.1), step("b", 1, 10.0), step("b", 2, 10.0),
        step("b", 2, 10.0), score("b", 2, 0.4), step("b", 3, 10.0), score("b", 3, 0.3),
    ]  # fmt: skip
    student = benchmark.student_of(events, ("a", "b"))
    assert student.curve == ((5.0, 0.1), (25.0, 0.4), (35.0, 0.3))
    assert (student.accuracy, student.flops) == (0.3, 35.0)
    assert [student.cost_of(x) for x in (0.1, 0.3, 0.4, 0.5)] == [5.0, 25.0, 25.0, None]
