"""Collection of cycles rests while very many objects are made, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from lydite.config import UserError, validate
from lydite.tasks.bulk import uncollected
from lydite.tasks.task import TaskConfig, load_task


@pytest.fixture(autouse=True)
def on_again() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("on", [True, False])
def test_it_is_off_within_and_then_as_it_was(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    with pytest.raises(KeyError), uncollected(), uncollected():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() == on


def test_a_task_that_cannot_be_read_leaves_it_on() -> None:
    task = validate(TaskConfig, {"generated": {"kinds": ["ad"]}})
    with pytest.raises(UserError, match="none of add, sum, count"):
        load_task("train", task, 0)
    assert gc.isenabled()


def test_no_collection_while_problems_are_made() -> None:
    passes = []
    gc.callbacks.append(lambda phase, info: passes.append(phase))
    try:
        load_task("train", validate(TaskConfig, {"generated": {"count": 2000}}), 0)
        made = len(passes)
    finally:
        gc.callbacks.pop()
    assert made <= 2  # The start and the end of one that follows at once.
