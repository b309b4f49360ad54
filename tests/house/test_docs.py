from __future__ import annotations

import importlib.util
import re
import types
from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import Field

from lydite.config import Config, validate
from lydite.objective import Objective
from lydite.verify import VerifierConfig
from lydite.verify.settings import all_rewards

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generate() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Leaf(Config):
    """A leaf,
    of a tree."""

    kind: Literal["leaf"] = Field("leaf", description="Which.")
    size: float = Field(1e-6, gt=0, le=2, description="How big | wide.")


class Root(Config):
    """The root."""

    name: str = Field(description="Required.")
    leaf: Leaf = Field(Leaf(), description="One.")
    more: tuple[Leaf, ...] = Field((Leaf(size=2),), description="Several.")
    by_name: dict[str, Leaf | None] = Field({}, description="Named.")
    stop: str | None = Field(None, description="Maybe.")
    mark: str = Field("\n", description="Mark.")


def test_each_record_is_a_section_with_a_row_a_field(generate: types.ModuleType) -> None:
    text = generate.page(Root)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Root",
        "## Leaf (`kind: leaf`)",
    ]
    for row in (
        "| `name` | text | required | Required. |",
        "| `leaf` | [Leaf](#leaf-kind-leaf) | `{kind: leaf}` | One. |",
        "| `more` | list of [Leaf](#leaf-kind-leaf) | `[{kind: leaf, size: 2}]` | Several. |",
        "| `by_name` | mapping of name to [Leaf](#leaf-kind-leaf) or null | `{}` | Named. |",
        "| `stop` | text or null | `null` | Maybe. |",
        "| `mark` | text | `'\\n'` | Mark. |",
        "| `size` | number | `1e-06` | How big \\| wide. (> 0, ≤ 2) |",
        "A leaf, of a tree.",
    ):
        assert row in text.splitlines()


def test_the_recipe_reference_says_what_the_code_does(generate: types.ModuleType) -> None:
    written = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert written == generate.page(generate.Recipe), "run `make docs`"


def test_every_setting_of_an_objective_is_in_the_reference(generate: types.ModuleType) -> None:
    rows = generate.objective_section().splitlines()
    for row in (
        "| `ratio` | `token`, `sequence`, `gspo_token`, `product` | `token` | ",
        "| `kl` | number ≥ 0 | `0` | Coefficient",
        "| `kl.refresh` | whole number ≥ 1 or null | `null` | Steps",
        "| `overlong_cache` | number ≥ 0, ≤ 1 | `0` | Last share",
        "| `mask_truncated` | true or false | `false` | Leave",
    ):
        assert any(shown.startswith(row) for shown in rows)
    assert len([row for row in rows if row.startswith("| `")]) == len(Objective.defaults())


def test_every_setting_is_described(generate: types.ModuleType) -> None:
    silent = [
        f"{config.__name__}.{name}"
        for config in generate._records(generate.Recipe)
        for name, field in config.model_fields.items()
        if not field.description and name != "kind"
    ]
    assert silent == []


def _verifiers_in(page: str) -> list[object]:
    blocks = re.findall(r"^```yaml\n(verifier:.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [yaml.safe_load(block)["verifier"] for block in blocks]


def test_every_verifier_that_the_docs_show_is_one():
    page = (ROOT / "docs" / "verifiers.md").read_text()
    shown = _verifiers_in(page)
    assert len(shown) > 12
    kinds = {
        reward.kind
        for value in shown
        for reward in all_rewards(validate(VerifierConfig, {"rewards": value}).rewards)
    }
    assert {"gate", "cascade", "choice", "language", "judge"} <= kinds


def test_every_kind_of_reward_is_in_the_table_of_the_docs():
    page = (ROOT / "docs" / "verifiers.md").read_text()
    table = page.partition("## ")[0]
    union = VerifierConfig.model_json_schema()["properties"]["rewards"]["items"]
    kinds = set(union["discriminator"]["mapping"])
    assert len(kinds) > 15
    assert kinds == {
        kind
        for cell in re.findall(r"^\| \[(.*?)\]\(#", table, re.MULTILINE)
        for kind in re.findall(r"`(\w+)`", cell)
    } - {"when"}


def test_the_stages_and_filters_that_the_docs_list_are_all_there_are() -> None:
    from lydite.pipeline.recipe import Recipe
    from lydite.train.filters import FilterConfig

    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    kinds = Recipe.model_json_schema()["properties"]["stages"]["items"]["discriminator"]["mapping"]
    stages, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    filters, pairs = (
        next(part for part in parts if part.startswith(name))
        for name in ("Rejection", "Preference")
    )
    rows = re.findall(r"^\| `(\w+)`", stages, re.MULTILINE)
    assert rows[0] == "kind" and set(rows[1:]) == set(kinds) and len(rows) == len(kinds) + 1
    named = [name for name in FilterConfig.model_fields if name != "prefer"]
    assert re.findall(r"^\| `(\w+)`", filters, re.MULTILINE) == named
    sources = {"sampled", "stage", "task"}
    assert set(re.findall(r"^\| `(\w+)`", pairs, re.MULTILINE)) == sources
    page += (ROOT / "docs" / "distillation.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for values in map(yaml.safe_load, blocks):
        if isinstance(values, dict):
            validate(Recipe, {"model": {"path": "some/model"}, **values})
        else:  # Stages to add to a recipe, which names others of it.
            assert {stage["kind"] for stage in values} <= set(kinds)
    assert blocks
