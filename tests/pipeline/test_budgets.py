"""Accuracy against thinking budget: what is measured, and how it is shown."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from rich.console import Console

from lydite.config import UserError
from lydite.pipeline.budget_picture import _places, draw, save
from lydite.pipeline.budgets import Point, chart, parse_budgets, points, table, with_budget
from lydite.train.evaluate import Answered, Evaluation, Prompt
from lydite.types import (
    Completion,
    Message,
    Outcome,
    Problem,
    SamplingParams,
    ThinkingBudget,
    Thought,
    Verdict,
)
from lydite.watch.intervals import Interval


def point(task: str, budget: int | None, mean: float, hits: float = 0.0) -> Point:
    interval = Interval(mean, max(0.0, mean - 0.1), min(1.0, mean + 0.1), 50)
    thought = math.nan if budget is None else 3.0
    return Point(task, budget, interval, 9.0, thought, hits, 0.25)


FOUND = [
    point("held", 4, 0.0, 1.0),
    point("held", 16, 0.5),
    point("held", None, 1.0),
    point("other", 4, 0.2),
]


def test_budgets_are_read_in_order() -> None:
    assert parse_budgets("32,none, 8,0,8") == [0, 8, 32, None]


@pytest.mark.parametrize("text", ["", "8,", "8 16", "-1", "many", "1.5", "⁸"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--budgets: .* write 16,32,64") as caught:
        parse_budgets(text)
    assert "\n" not in str(caught.value)


def test_a_budget_keeps_what_the_recipe_says_of_its_phrase() -> None:
    plain = SamplingParams(90, top_k=4)
    assert with_budget(plain, 8, None) == SamplingParams(90, top_k=4, thinking=ThinkingBudget((8,)))
    recipes = with_budget(plain, 8, "so")
    assert with_budget(recipes, 3, None).thinking == ThinkingBudget((3,), phrase="so")
    assert with_budget(recipes, None, None) == plain
    with pytest.raises(UserError, match=r"--budget-phrase: .* leave tags out"):
        with_budget(plain, 8, "so</think>")


def answered(problem: str, right: bool, cut: bool, budget: int | None) -> Answered:
    completion = Completion(
        problem, 0, (1,), (5,) * 6, (-1.0,) * 6, (1, 1, 0, 0, 1, 1) if cut else (1,) * 6,
        "length" if right else "stop", "", (0, 0),
        None if budget is None else Thought(budget, 2 if cut else 4, cut),
    )  # fmt: skip
    verdict = Verdict(Outcome.CORRECT if right else Outcome.WRONG, float(right))
    return Answered(Prompt(Problem(problem, "", (Message("user", ""),)), (1,)), completion, verdict)


def test_points_by_hand() -> None:
    def evaluation(budget: int | None) -> Evaluation:
        answers = tuple(answered(f"p{i}", i == 0, i < 2, budget) for i in range(4))
        scores = {f"p{i}": [float(i == 0)] for i in range(4)}
        return Evaluation("held", scores, answers, 0)

    bound, free = points({2: {"held": evaluation(2)}, None: {"held": evaluation(None)}})
    assert (bound.budget, bound.accuracy.mean, bound.accuracy.n) == (2, 0.25, 4)
    assert bound.length == 5.0  # (4 + 4 + 6 + 6) / 4: what was injected is no length
    assert (bound.thought, bound.hits, bound.cut_off) == (3.0, 0.5, 0.25)
    assert (free.budget, free.hits, math.isnan(free.thought)) == (None, 0.0, True)


def test_the_chart_is_to_scale() -> None:
    lines = chart(FOUND).splitlines()
    assert lines[0] == "held: accuracy on 50 problems by thinking budget"
    assert [lines[1].index(tick) for tick in ("0%", "50%", "100%")] == [8, 33, 58]
    zero, half, whole = lines[2:5]
    assert zero == "     4  ●────┤ 0.0%"
    assert half == f"    16  {' ' * 20}├────●────┤ 50.0%"
    assert (whole[:6], whole.index("├"), whole.index("●")) == ("  none", 8 + 45, 8 + 50)
    assert lines[5] == "" and lines[6].startswith("other: ")
    nothing = Point("held", 4, Interval(math.nan, math.nan, math.nan, 0), 0, 0, 0, 0)
    assert chart([nothing]).endswith("4  nothing could be decided")


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=80, record=True, file=sys.stderr)
    console.print(table(FOUND, 4))
    lines = console.export_text().splitlines()
    assert lines[0].split() == [
        "task", "budget", "avg@4", "95%", "interval", "tokens", "thinking", "hits", "cut", "off",
    ]  # fmt: skip
    assert lines[1].split() == [
        "held",
        "4",
        "0.0%",
        "0.0%",
        "to",
        "10.0%",
        "9.0",
        "3.0",
        "100%",
        "25%",
    ]
    assert lines[3].split() == ["held", "none", "100.0%", "90.0%", "to", "100.0%", "9.0", "25%"]
    assert len(lines) == 5


def test_places_on_the_axis() -> None:
    """Doublings where budgets are far apart, 0 a step before them; else as they are."""
    assert _places({64, 0, 8, 16}) == {0: -1.0, 8: 0.0, 16: 1.0, 64: 3.0}
    assert _places({8, 0, 16}) == {0: 0.0, 8: 8.0, 16: 16.0}
    assert _places(set()) == {} and _places({0}) == {0: 0.0}


def test_the_picture_shows_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = draw(FOUND, "runs/$x$/model")
    top, bottom = figure.axes
    held = next(line for line in top.get_lines() if line.get_color() == "#0072B2")
    assert [list(map(float, axis)) for axis in held.get_data()] == [[4.0, 16.0], [0.0, 0.5]]
    assert list(map(float, bottom.get_lines()[0].get_ydata())) == [1.0, 0.0]
    assert [label.get_text() for label in bottom.get_xticklabels()] == ["4", "16"]
    assert {t.get_text() for t in top.get_legend().get_texts()} == {
        "held", "held, no budget", "other",
    }  # fmt: skip
    save(FOUND, "runs/$x$/model", tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes()[:4] == b"\x89PNG"
    save([point("held", None, 0.5)], "m", tmp_path / "none.png")
    save([point("held", 0, 0.5)], "", tmp_path / "zero.png")


def test_a_picture_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (tmp_path / "b.jpg", tmp_path / "gone" / "b.png"):
        with pytest.raises(UserError, match=r"--png: .*give a \.png file in a folder that exists"):
            save(FOUND, "m", path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'lydite\[plot\]'"):
        save(FOUND, "m", tmp_path / "b.png")
