"""A command's imports: not looked through for garbage, neither meanwhile nor later."""

from __future__ import annotations

import gc
import sys

import pytest

from lydite.cli.starting import importing


@pytest.mark.parametrize("first", [True, False])
def test_what_is_imported_leaves_the_collector_the_first_time(
    monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    if first:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", object())
    gc.unfreeze()
    try:
        with importing():
            assert not gc.isenabled()
            made = [[] for _ in range(10)]
        assert gc.isenabled()
        assert (gc.get_freeze_count() > len(made)) == first
    finally:
        gc.unfreeze()


def test_imports_that_fail_leave_it_at_work() -> None:
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert gc.isenabled()
