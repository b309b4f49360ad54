"""What the README shows is what the code is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_block_is_the_example_that_a_test_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    example = (ROOT / "examples" / "python_api.py").read_text(encoding="utf-8")
    assert [block.strip() for block in blocks] == [example.strip()]


def test_every_file_that_it_links_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", README)
    named = re.findall(r"`((?:recipes|examples|benchmarks)/[\w./]+)`", README)
    assert links and named
    for path in (*links, *named):
        assert (ROOT / path).exists(), path


def test_its_own_recipe_loads(tmp_path: Path) -> None:
    from lydite.config import load_yaml, validate
    from lydite.pipeline.recipe import Recipe

    text = next(b for b in re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL))
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    recipe = validate(Recipe, load_yaml(path))
    assert recipe.stages[0].kind == "rl" and recipe.evaluation.tasks == ("heldout",)


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README
