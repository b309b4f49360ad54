"""The recipes that ship: files in `recipes/` of a checkout and its folders, installed beside the
package elsewhere.

A recipe describes itself in its first comment line, so there is no list to keep.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from lydite.config import UserError

_INSTALLED = "share/lydite/recipes/"


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """``name`` is the file's name without its ending; ``about`` its first comment line."""

    name: str
    path: Path
    about: str


def list_recipes() -> list[RecipeFile]:
    """The recipes that ship, by name; the quickstart, where a newcomer starts, first."""
    found = [RecipeFile(path.stem, path, _about(path)) for path in _shipped()]
    return sorted(found, key=lambda recipe: (recipe.name != "quickstart", recipe.name))


def find_recipe(name: str | Path) -> Path:
    """The file that ``name`` means: a path as given, or else a recipe that ships, with or without
    its folder and its ending (``recipes/quickstart.yaml`` works from any folder).

    Raises:
        UserError: there is neither; the nearest name is given.
    """
    given = Path(name)
    if given.is_file():
        return given
    if given.is_dir():
        raise UserError(f"recipe: {given} is a folder; name the .yaml file in it")
    shipped = {recipe.name: recipe.path for recipe in list_recipes()}
    bare = given.name.removesuffix(".yaml").removesuffix(".yml")
    # A path of the user's own that is not there must not quietly become a recipe of ours.
    if bare in shipped and str(given.parent) in _folders(shipped[bare]):
        return shipped[bare]
    near = difflib.get_close_matches(bare, shipped, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "`lydite recipes` lists the ones that ship"
    raise UserError(f"recipe: no file {given}; {hint}")


def _folders(path: Path) -> list[str]:
    """How a recipe's folder may be written: not at all, or from `recipes` on, or within it."""
    inside = path.parent.name
    nested = [inside, f"recipes/{inside}"] if path.parent.parent.name == "recipes" else ["recipes"]
    return [".", *nested]


def _shipped() -> list[Path]:
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        return sorted((checkout / "recipes").rglob("*.yaml"))
    try:
        installed = files("lydite") or []
    except PackageNotFoundError:
        return []
    # Paths in the record lead out of site-packages (../../../share/…), to wherever pip put them.
    here = [file for file in installed if file.suffix == ".yaml" and _INSTALLED in file.as_posix()]
    return sorted(Path(str(file.locate())).resolve() for file in here)


def _about(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        first = next((line.strip() for line in file if line.strip()), "")
    return first.lstrip("#").strip() if first.startswith("#") else ""
