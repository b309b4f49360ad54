"""The recipes of R1: what is published is in them, and the tiny ones can run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.stages.rejection import RejectionSamplingStage
from lydite.pipeline.stages.rl import RLStage
from lydite.pipeline.stages.sft import SFTStage
from lydite.verify.settings import reward_model_stages

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "r1.py"


def stage(recipe: Recipe, name: str) -> Any:
    return next(each for each in recipe.stages if each.name == name)


def test_what_is_published_is_in_r1() -> None:
    """2501.12948v2: one step of ours is a rollout, sixteen of the paper's."""
    recipe = load_recipe(find_recipe("r1"))
    reason, imitate, align = (stage(recipe, n) for n in ("reason", "imitate", "align"))
    assert isinstance(reason, RLStage) and isinstance(align, RLStage)
    assert reason.prompts_per_step * reason.group_size == 8192
    per_update = reason.prompts_per_step * reason.group_size // reason.update.minibatches
    assert (per_update, reason.group_size) == (512, 16)
    objective = reason.build_objective()
    assert (objective.clip_high, objective.kl.coefficient) == (10.0, 0.001)
    assert objective.kl.refresh is not None and objective.kl.refresh * 16 == 400
    assert reason.optimizer.lr == 3e-6 and reason.sampling.max_tokens == 32768
    assert isinstance(imitate, SFTStage) and imitate.start_from == "model"
    assert (imitate.epochs, imitate.batch_size) == (2, 64)
    rate = imitate.optimizer
    assert (rate.lr, rate.schedule, rate.final_lr) == (5e-6, "cosine", 0.1)
    mix = recipe.tasks["imitate"].mix
    assert mix is not None and mix["kept"] / mix["general"] == 3  # 600k and 200k
    assert align.sampling.temperature == 0.7 and align.steps == 1700 // 16
    (_, _, first), (start, task, late) = align.spans
    assert first is None and (align.steps - start) * 16 == 400 and task == "everything"
    assert late is not None and set(reward_model_stages(late)) == {"helpful"}
    helpful = stage(recipe, "helpful")
    assert (helpful.batch_size, helpful.epochs, helpful.max_tokens) == (256, 1, 8192)
    assert helpful.optimizer.lr == 6e-6 and helpful.sees == "answer"


def test_the_tiny_one_has_all_four_stages() -> None:
    recipe = load_recipe(find_recipe("r1_tiny"))
    sample, imitate, align = (stage(recipe, n) for n in ("sample", "imitate", "align"))
    assert isinstance(sample, RejectionSamplingStage) and sample.filters.language is not None
    assert imitate.start_from == "base" and align.sampling.temperature == 0.7
    (_, _, first), (start, _, late) = align.spans
    assert first is None and start == align.steps // 2
    asked = {name: reward.sees for name, reward in reward_model_stages(late).items()}
    assert asked == {"helpful": "answer", "harmless": "whole"}
    assert reward_model_stages(recipe.verifier) == {}


@pytest.mark.parametrize("name", ["r1_tiny", "r1_zero_tiny"])
def test_a_tiny_one_can_run(name: str, tmp_path: Path) -> None:
    few = ("base_reasoning.generated", "base_general.courtesy", "reasoning.generated")
    recipe = load_recipe(find_recipe(name), [f"tasks.{task}.count=200" for task in few])
    checks = list(check_recipe(recipe, tmp_path / "run"))
    assert [c for c in checks if c.mark is Mark.FAILED] == []


def test_both_tiny_ones_have_one_base_and_the_control_lacks_a_skill(tmp_path: Path) -> None:
    found = importlib.util.spec_from_file_location("r1_benchmark", BENCHMARK)
    assert found is not None and found.loader is not None
    benchmark = importlib.util.module_from_spec(found)
    found.loader.exec_module(benchmark)
    whole, zero = (load_recipe(find_recipe(n)) for n in ("r1_tiny", "r1_zero_tiny"))
    assert whole.model == zero.model and stage(whole, "base") == stage(zero, "base")
    for task in ("base", "base_reasoning", "base_general", "reasoning", "heldout"):
        assert whole.tasks[task] == zero.tasks[task], task
    control = benchmark.recipe_of("control", 1, tmp_path)
    assert set(control.tasks["base_reasoning"].generated.kinds) == {"sum", "count"}
    assert "add" in control.tasks["reasoning"].generated.kinds
    started = benchmark.recipe_of("zero", 1, tmp_path)
    assert [s.name for s in started.stages] == ["zero"]
    assert started.model.path == str(tmp_path / "r1-1/stages/base/model")
    assert benchmark.interval([0.2, 0.4, 0.6]) == (
        pytest.approx(0.4),
        pytest.approx(0.4968, abs=1e-3),
    )
