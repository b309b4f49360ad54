"""A run as a page and as a picture: what is shown, and that a model's text is only shown."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.watch.diagnosis.curves import Curves
from lydite.watch.diagnosis.own import read_run
from lydite.watch.events import Evaluated, EventLog, RunStarted, StageStarted, StepDone, Warned
from lydite.watch.report.page import page, run_page
from lydite.watch.report.panels import PANELS, panels_of, smooth
from lydite.watch.report.picture import as_png, as_svg, draw, save_png

RECORDED = Path(__file__).parent / "recorded"


def curves(**metrics: list[float]) -> Curves:
    steps = tuple(range(1, len(next(iter(metrics.values()))) + 1))
    return Curves("rl", "rl", steps, {name: tuple(values) for name, values in metrics.items()})


def titles(made: Curves) -> list[str]:
    return [panel.title for panel in panels_of(made)]


def test_a_panel_for_what_was_measured_and_none_for_what_was_not() -> None:
    made = curves(reward=[0.1, 0.2, 0.3], length=[1.0, 2.0, math.nan], entropy=[math.nan] * 3)
    assert titles(made) == ["Reward", "Length"]
    (length,) = (p for p in panels_of(made) if p.title == "Length")
    assert length.lines == (("length", "mean"),)
    held = (Evaluated(task="t", step=0, avg=0.5),)
    assert "Held out, 95% interval" in titles(replace(made, evaluations={"t": held}))
    assert titles(replace(made, evaluations={"t": (Evaluated(task="t"),)})) == ["Reward", "Length"]


def test_rounding_and_zeros_are_no_curves() -> None:
    made = curves(kl_behaviour=[1e-14] * 3, clip_low=[0.0] * 3, clip_high=[0.0, 0.01, 0.0])
    (panel,) = panels_of(made)
    assert panel.lines == (("clip_high", "above"),)


def test_a_smoothed_course_by_hand() -> None:
    assert smooth([1.0, 2.0, 6.0, math.nan, 8.0], 1) == [1.0, 3.0, 4.0, 7.0, 8.0]
    assert smooth([1.0, 1.0, 10.0, 1.0, 1.0], 2)[2] == pytest.approx(2.8)
    assert all(map(math.isnan, smooth([math.nan] * 3, 1)))
    assert smooth([], 3) == []


def test_every_figure_that_is_drawn_is_one_that_is_defined() -> None:
    text = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    assert all(f"`{name}`" in text for panel in PANELS for name, _ in panel.lines)


def test_the_picture_of_a_real_run_has_a_panel_for_each() -> None:
    pytest.importorskip("matplotlib")
    (run,) = read_run(RECORDED / "messy_output")
    shown = [axes for axes in draw(run).axes if axes.get_visible()]
    found = {axes.get_title(loc="left").partition(",")[0] for axes in shown}
    assert len(shown) == len(panels_of(run)) == 13
    assert found >= {"Reward", "Held out", "Entropy", "Update over weights", "Memory"}
    (held,) = (axes for axes in shown if axes.get_title(loc="left").startswith("Held"))
    assert len(held.containers[0].lines[0].get_xdata()) == 5
    (text,) = (axes for axes in shown if axes.get_title(loc="left") == "Text")
    assert "well formed" in [label.get_text() for label in text.get_legend().get_texts()]
    assert len({axes.get_xlim() for axes in shown}) == 1
    assert as_svg(run) == as_svg(run) and as_svg(run).startswith("<svg")


def test_a_png_of_several_stages_holds_all_of_them(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    one = curves(reward=[0.1, 0.2])
    save_png([one, replace(one, stage="again"), replace(one, metrics={})], tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(as_png([one]))
    both, single = (image.imread(tmp_path / name) for name in ("a.png", "b.png"))
    assert both.shape[0] == 2 * single.shape[0] and both.shape[1] == single.shape[1]
    with pytest.raises(UserError, match="nothing was measured yet"):
        as_png([replace(one, metrics={})])
    with pytest.raises(UserError, match=r"give a \.png file"):
        save_png([one], tmp_path / "c.svg")


class Reader(HTMLParser):
    """Tags that were opened and not closed, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_the_page_of_a_run_tells_its_scores_its_faults_and_its_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = RECORDED / "verifier_gamed"
    found = read(run_page(run, read_run(run)))
    assert "Reward climbs and held-out accuracy does not." in found.text
    assert "accuracy [95%]" in found.text and "svg" in found.seen
    assert "Not done yet: rl (rl, 40 steps)" in found.text


def test_what_a_model_writes_is_shown_and_does_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    hostile = "<script>alert(1)</script>\x1b[2J$\\frac{"
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(RunStarted(name=hostile))
        log.append(StageStarted(stage="rl", stage_kind="rl"))
        for step in (1, 2):
            log.append(StepDone(stage="rl", step=step, metrics={"reward": 0.5}))
        log.append(Evaluated(stage="rl", step=2, task=hostile, avg=0.5, lo=0.4, hi=0.6, n=4))
        log.append(Warned(stage="rl", step=2, message=hostile, code="x"))
    (tmp_path / "recipe.yaml").write_text("stages: [{name: rl}]")
    stages = read_run(tmp_path)
    text = run_page(tmp_path, stages)
    assert "script" not in read(text).seen
    assert "\x1b" not in text
    assert read(page("log", [curves(reward=[0.1, 0.2])])).text.count("Read: rl") == 1


def test_without_matplotlib_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"^--png: needs matplotlib; pip install 'lydite\[plot\]'$"):
        save_png([curves(reward=[0.1, 0.2])], tmp_path / "a.png")
