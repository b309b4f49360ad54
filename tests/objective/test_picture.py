"""The picture of an objective: what is drawn where, the file, and what cannot be written."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.objective import PRESETS, Objective
from lydite.objective.explain import clip_edges
from lydite.objective.picture import draw, save

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'lydite[plot]'")


def test_a_png_of_the_promised_size_is_written(tmp_path: Path) -> None:
    path = tmp_path / "dapo.PNG"
    save(Objective.parse("dapo"), path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1920, 1200)
    assert [p.name for p in tmp_path.iterdir()] == ["dapo.PNG"]


def test_the_surrogate_is_above_its_gradient_for_both_signs() -> None:
    figure = draw(Objective.parse("grpo+clip_higher"))
    assert figure.texts[0].get_text() == "grpo+clip_higher"
    assert figure.texts[1].get_text() == "gain = min( ρA, clip(ρ, 1 − 0.2, 1 + 0.28)·A )"
    top, bottom = figure.axes
    good, bad = (line for line in top.lines if len(line.get_xdata()) > 2)
    assert good.get_ydata()[-1] == pytest.approx(0.28, abs=1e-3)
    assert bad.get_ydata()[0] == pytest.approx(0.2, abs=1e-3)
    assert good.get_color() != bad.get_color() and good.get_linestyle() != bad.get_linestyle()
    assert {text.get_text() for text in top.texts} == {"A = +1", "A = −1", "not clipped"}
    up, down = (line for line in bottom.lines if len(line.get_xdata()) > 2)
    for line, sign, moves in ((up, 1, lambda r: r < 1.28), (down, -1, lambda r: r > 0.8)):
        for ratio, slope in zip(line.get_xdata(), line.get_ydata(), strict=True):
            if abs(ratio - 1.28) > 1e-6 and abs(ratio - 0.8) > 1e-6:
                assert slope == pytest.approx(sign * ratio if moves(ratio) else 0, abs=1e-9)
    for panel in (top, bottom):
        band = panel.patches[0]
        assert band.get_x() == pytest.approx(0.8)
        assert band.get_x() + band.get_width() == pytest.approx(1.28)
    assert {"0.8", "1", "1.28"} <= {label.get_text() for label in bottom.get_xticklabels()}


def test_the_bound_for_bad_tokens_is_in_the_picture() -> None:
    top, bottom = draw(Objective.parse("grpo+dual_clip")).axes
    assert top.get_xlim()[1] == pytest.approx(3.75)
    assert "3" in {label.get_text() for label in bottom.get_xticklabels()}
    assert [3.0, 3.0] in [list(line.get_xdata()) for line in bottom.lines]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_can_be_drawn_without_a_warning(preset: str) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks
        figure = draw(Objective.parse(preset))
        figure.draw_without_rendering()
    assert bool(figure.axes[0].patches) is (clip_edges(Objective.parse(preset)) is not None)


def test_clip_edges_are_ratios_whatever_is_clipped() -> None:
    def edges(spec: object) -> tuple[float, float] | None:
        return clip_edges(Objective.parse(spec))

    assert edges("gspo") == pytest.approx((0.9997, 1.0004))
    assert edges("gmpo") == pytest.approx((0.670320, 1.491825))  # e^∓0.4
    # a token of probability e^−½ = 0.606531 that may move by 0.15
    assert edges("dppo") == pytest.approx((0.752692, 1.247308))
    assert edges("cispo") == pytest.approx((0.0, 5.0))
    assert edges("sapo") is None and edges("reinforce") is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("picture.pdf", r"--png: .*picture\.pdf is no name of a PNG; end it in \.png"),
        ("picture", "is no name of a PNG"),
        ("nowhere/picture.png", "cannot write .*No such file or directory"),
        ("folder.png", "cannot write .*Is a directory"),
    ],
)
def test_a_bad_path_is_one_line(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=says) as caught:
        save(Objective.parse("grpo"), tmp_path / name)
    assert "\n" not in str(caught.value)


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'lydite\[plot\]'"):
        save(Objective.parse("grpo"), tmp_path / "grpo.png")
