from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from lydite.objective import PATCHES, PRESETS

Cli = Callable[..., Result]


def test_list_has_a_line_for_each_name(cli: Cli) -> None:
    result = cli("objective", "--list")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.output.splitlines() if line.startswith("  ")]
    assert names == [*PRESETS, *PATCHES]


def test_a_spec_is_explained(cli: Cli) -> None:
    result = cli("objective", "grpo+clip_higher", "tis", "clip_high=0.3", "kl.coefficient=0.01")
    assert result.exit_code == 0
    for text in (
        "gain = min( ρA, clip(ρ, 1 − 0.2, 1 + 0.3)·A )",
        "minus 0.01·KL(π‖π_ref)",
        "grpo: group mean and std",
        "clip_higher: entropy collapse",
        "group_filter.max_rounds=10",
        "correction.high  2",
        "this spec",
        "A = +1",
        "A = −1",
        "└───",
    ):
        assert text in result.output


def test_a_mistake_is_one_line(cli: Cli) -> None:
    for arguments, says in (
        (["grpo+clip_heigher"], "did you mean 'clip_higher'"),
        (["grpo", "clip_hihg=1"], "did you mean 'clip_high'"),
        (["clip_high=[1"], "clip_high"),
        (["grpo", "preset=dapo"], "'grpo' and 'dapo'"),
        (["grpo", "clip_high=0.3", "clip_high=0.4"], "clip_high: is given twice"),
        ([], "--list"),
    ):
        result = cli("objective", *arguments)
        assert result.exit_code == 2
        assert says in result.output
        assert "Traceback" not in result.output


def test_names_can_be_written_as_in_a_recipe(cli: Cli) -> None:
    words, keys = (
        cli("objective", *given) for given in (["dapo+tis"], ["preset=dapo", "patches=tis"])
    )
    assert words.exit_code == 0 and words.output == keys.output


def test_a_picture_is_written_in_place_of_the_plot(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = cli("objective", "gspo", "clip_high=0.001", "--png", "gspo.png")
    assert result.exit_code == 0
    assert (tmp_path / "gspo.png").read_bytes().startswith(b"\x89PNG")
    assert "gspo.png" in result.output.splitlines()[-1]
    assert "└───" not in result.output and "this spec" in result.output


def test_a_picture_that_cannot_be_written_is_one_line(cli: Cli) -> None:
    pytest.importorskip("matplotlib")
    result = cli("objective", "gspo", "--png", "missing/gspo.png")
    assert result.exit_code == 2
    assert "cannot write missing/gspo.png" in result.output
    assert "Traceback" not in result.output
