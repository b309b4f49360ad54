from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lydite.config import UserError, validate
from lydite.tasks.mix import mix
from lydite.tasks.task import RowsConfig, TaskConfig, TaskData, load_task, task_of_rows


def task(name: str, count: int) -> TaskData:
    rows = [{"question": f"{name} {n}", "answer": str(n)} for n in range(count)]
    return task_of_rows(name, rows, {})


def mixed(weights: dict[str, float], seed: int = 0, **settings: Any) -> TaskData:
    parts = {"a": task("a", 30), "b": task("b", 5)}
    return mix("m", RowsConfig.model_validate(settings), parts, weights, seed)


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ({"a": 1, "b": 1}, {"a": 5, "b": 5}),
        ({"a": 0.75, "b": 0.25}, {"a": 15, "b": 5}),
        ({"a": 6, "b": 1}, {"a": 30, "b": 5}),
        ({"a": 12, "b": 1}, {"a": 30, "b": 2}),
        ({"a": 3}, {"a": 30}),
    ],
)
def test_shares_are_kept_and_nothing_comes_twice(
    weights: dict[str, float], counts: dict[str, int]
) -> None:
    found = mixed(weights)
    assert Counter(p.id.split("/")[0] for p in found.problems) == counts
    assert len({p.question for p in found.problems}) == len(found.problems)
    assert f"{counts['a']} of 30 of a" in found.notes[0]


def test_a_mix_depends_on_its_seed_and_is_shuffled() -> None:
    assert mixed({"a": 1, "b": 1}) == mixed({"a": 1, "b": 1})
    assert mixed({"a": 1, "b": 1}).fingerprint != mixed({"a": 1, "b": 1}, seed=1).fingerprint
    parts = [p.id[0] for p in mixed({"a": 6, "b": 1}).problems]
    assert parts != sorted(parts)
    assert len(mixed({"a": 6, "b": 1}, limit=4).problems) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mix": {"a": 0}}, "mix.a"),
        ({"mix": {}}, "mix"),
        ({"mix": {"a": 1}, "path": "x.jsonl"}, "path and mix are given"),
        ({"mix": {"a": 1}, "system": "Be brief."}, "system: has no effect beside mix"),
        ({"from_stage": "s", "template": "{question}!"}, "template: has no effect"),
    ],
)
def test_what_a_mix_cannot_have_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validate(TaskConfig, settings)


@pytest.mark.parametrize("settings", [{"mix": {"a": 1}}, {"from_stage": "s"}])
def test_outside_a_run_there_is_nothing_to_read(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"tasks.t.{next(iter(settings))}: only a run"):
        load_task("t", validate(TaskConfig, settings), 0)
