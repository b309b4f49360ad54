from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import recipe, rl_stage, sft_stage, write
from typer.testing import CliRunner, Result

from lydite.cli.main import app
from lydite.pipeline.recipe import load_recipe
from lydite.pipeline.runner import run_recipe

Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An SFT stage and an RL stage that work."""
    return write(recipe([sft_stage(), rl_stage()], tmp_path), tmp_path / "recipe.yaml")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of :func:`file`'s recipe. Nobody changes it."""
    place = tmp_path_factory.mktemp("finished")
    path = write(recipe([sft_stage(), rl_stage()], place), place / "recipe.yaml")
    return run_recipe(load_recipe(path), place / "run").folder
