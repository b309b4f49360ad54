from __future__ import annotations

from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.pipeline import catalogue
from lydite.pipeline.catalogue import find_recipe, list_recipes


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shipped folder with two recipes, and an empty current folder."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    (folder / "apples.yaml").write_text("\n# Counts apples.\nname: apples\n")
    (folder / "quickstart.yaml").write_text("name: no comment\n# later\n")
    monkeypatch.setattr(catalogue, "_shipped", lambda: sorted(folder.glob("*.yaml")))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def test_the_quickstart_comes_first_and_each_tells_its_first_comment(shipped: Path) -> None:
    assert [(r.name, r.about) for r in list_recipes()] == [
        ("quickstart", ""),
        ("apples", "Counts apples."),
    ]


@pytest.mark.parametrize("name", ["apples", "apples.yaml", "recipes/apples.yaml", "recipes/apples"])
def test_a_shipped_recipe_is_found_from_any_folder(name: str, shipped: Path) -> None:
    assert find_recipe(name) == shipped / "apples.yaml"


def test_a_file_of_the_users_own_comes_first(shipped: Path) -> None:
    own = Path("apples.yaml")
    own.write_text("name: mine\n")
    assert find_recipe("apples.yaml") == own


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("aples", "did you mean 'apples'"),
        ("zzz.yaml", "`lydite recipes`"),
        ("mine/apples.yaml", "no file mine/apples.yaml"),
        (".", "is a folder"),
    ],
)
def test_what_is_not_there_is_one_line_with_a_remedy(name: str, hint: str, shipped: Path) -> None:
    with pytest.raises(UserError) as error:
        find_recipe(name)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


def test_every_recipe_of_the_checkout_describes_itself() -> None:
    assert all(recipe.about for recipe in list_recipes())
