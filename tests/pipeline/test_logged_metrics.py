"""Real runs log what docs/metrics.md defines, and it defines all that they log."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe, rl_stage, sft_stage

from lydite.config import validate
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.diagnosis.foreign import read_log
from lydite.watch.events import Evaluated, StepDone, read_events

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
PLACES = {"TAG": r".+", "PART": r".+", "OUTCOME": r"[a-z]+", "K": r"\d+"}
"""What stands for a name in the page."""

ALWAYS = {
    "reward", "reward_std", "accuracy", "groups_all_right", "groups_all_wrong",
    "informative_groups", "groups", "completions", "rounds", "advantage_std", "length",
    "length_p99", "truncated", "prompt_length", "distinct_completions", "repetition",
    "entropy", "entropy_sampled", "entropy_first", "entropy_last", "entropy_top", "ratio",
    "ratio_std", "clip_low", "clip_high", "kl_old", "kl_behaviour", "mismatch_ess",
    "mismatch_outside", "grad_norm", "update_ratio", "lr", "seconds", "seconds_sample",
    "seconds_verify", "seconds_update", "tokens", "tokens_per_second", "flops", "memory",
}  # fmt: skip
"""What every step that trains on something logs, whatever the recipe."""


def documented() -> list[str]:
    """The names in the first cells of the page's tables."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def pattern(name: str) -> re.Pattern[str]:
    spelt = re.escape(name)
    for place, stands_for in PLACES.items():
        spelt = re.sub(rf"(?<![A-Z]){place}(?![A-Z])", lambda _, s=stands_for: s, spelt)
    return re.compile(spelt)


def undocumented(names: Iterable[str]) -> set[str]:
    patterns = [pattern(name) for name in documented()]
    return {name for name in names if not any(each.fullmatch(name) for each in patterns)}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A run with all that is measured on demand: thinking asked for, several samples each, tags,
    and held-out answers judged by more than what trains.
    """
    place = tmp_path_factory.mktemp("measured")
    plain = recipe([sft_stage(steps=2), rl_stage(steps=3)], place)
    plain["tasks"]["heldout"]["generated"]["count"] = 8
    plain["evaluation"] |= {
        "samples": 4,
        "sampling": {"max_tokens": 6, "temperature": 1.0},
        "verifier": "exact",
        "readability": {"answer": "any", "thinking": "optional", "language": "en"},
    }
    run_recipe(validate(Recipe, plain), place / "run")
    return read_events(place / "run/events.jsonl")


def test_every_figure_of_a_step_is_defined(
    measured: list[Any], plain_run: Any, dynamic_run: Any, lora_run: Any
) -> None:
    runs = [read_events(run.folder / "events.jsonl") for run in (plain_run, dynamic_run, lora_run)]
    steps = [e for events in (measured, *runs) for e in events if isinstance(e, StepDone)]
    names = {name for step in steps for name in step.metrics}
    assert undocumented(names) == set()
    assert undocumented({"nothing_of_the_kind"}) == {"nothing_of_the_kind"}


def test_every_figure_of_an_evaluation_is_defined(measured: list[Any]) -> None:
    found = [e.metrics for e in measured if isinstance(e, Evaluated)]
    assert undocumented({name for metrics in found for name in metrics}) == set()


def test_a_step_that_trains_logs_what_it_should(measured: list[Any]) -> None:
    steps = [e.metrics for e in measured if isinstance(e, StepDone) and e.stage == "rl"]
    assert len(steps) == 3 and any(step["groups"] > 0 for step in steps)
    for step in steps:
        assert ALWAYS - {name for name, value in step.items() if math.isfinite(value)} == set()
        assert step["completions"] <= 12 and 0 <= step["well_formed"] <= 1
        assert step["update_ratio"] > 0 and step["memory"] > 0.05
    assert set(documented()) >= ALWAYS, "what every step logs stands in the page by its own name"


def test_held_out_scores_of_several_samples(measured: list[Any]) -> None:
    found = [e for e in measured if isinstance(e, Evaluated)]
    assert found and all(e.k == 4 for e in found)
    for event in found:
        metrics = event.metrics
        names = ["pass@2", "pass@4"]
        assert event.avg <= metrics["pass@2"] <= metrics["pass@4"] <= 1
        tags = [
            n for n in metrics if n.startswith("accuracy_tag_") and n[-3:] not in ("_lo", "_hi")
        ]
        assert len(tags) == 3
        for name in [*names, *tags]:
            assert metrics[f"{name}_lo"] <= metrics[name] <= metrics[f"{name}_hi"]


def test_the_judge_of_held_out_answers_is_another_than_that_of_training(
    measured: list[Any],
) -> None:
    """What trains pays for a digit in front; what is held out wants the answer."""
    last = [e.metrics for e in measured if isinstance(e, StepDone) and e.stage == "rl"][-1]
    assert last["accuracy"] > 0
    assert [e.avg for e in measured if isinstance(e, Evaluated)][-1] < last["accuracy"]


def test_a_run_that_reports_to_tensorboard_leaves_its_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    plain = recipe([sft_stage(steps=2)], tmp_path, report="tensorboard")
    made = validate(Recipe, plain)
    assert made.report == ("tensorboard",)
    for _ in range(2):  # The second time nothing is left to do, and nothing is lost.
        run_recipe(made, tmp_path / "run")
        renamed = {"loss": "sft/loss", "accuracy": "sft/heldout/avg"}
        (found,) = read_log(tmp_path / "run/tensorboard", renamed)
        assert found.steps == (0, 1, 2) and len(found.values("loss")) == 2
        assert len(found.values("accuracy")) == 2
