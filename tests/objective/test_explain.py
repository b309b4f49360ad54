"""What a spec is made of, and how its surrogate looks; the surrogate that the docs add."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
import yaml

from lydite.config import UserError
from lydite.objective import PATCHES, PRESETS, Counts, Objective, describe, surrogate
from lydite.objective.explain import Curve, catalogue, curve, defaults, origins, plot, sources

DOCS = Path(__file__).resolve().parents[2] / "docs" / "objectives.md"


def test_each_setting_says_who_set_it() -> None:
    spec = {"preset": "dapo", "patches": ["tis"], "clip_high": 0.3, "kl": {"coefficient": 0.01}}
    found = {row.key: (row.value, row.by) for row in origins(spec)}
    assert found["clip_low"] == (0.2, "dapo")
    assert found["clip_high"] == (0.3, "this spec")
    assert found["correction"] == ("tis", "tis")
    assert found["kl"] == (0.01, "this spec")
    rest = defaults(spec)
    assert found.keys() | rest.keys() == Objective.defaults().keys()
    assert not found.keys() & rest.keys() and rest["group_filter.max_rounds"] == 10
    assert sources(spec) == [
        ("dapo", PRESETS["dapo"].about, "DAPO, arXiv 2503.14476"),
        ("tis", PATCHES["tis"].why, PATCHES["tis"].source),
    ]
    with pytest.raises(UserError, match="contradict"):
        origins("grpo+token_mean+fixed_length")


def test_the_catalogue_has_every_name_once_and_in_one_line() -> None:
    names = [name for _, name, _, _ in catalogue()]
    assert names == [*PRESETS, *PATCHES]
    assert all(about and source and "\n" not in about + source for *_, about, source in catalogue())


def test_curve_of_the_clip() -> None:
    good, bad = (curve(Objective.parse("grpo"), sign) for sign in (1.0, -1.0))
    assert (good.ratios[0], good.ratios[-1]) == (0.5, 1.5)
    at = {round(ratio, 3): i for i, ratio in enumerate(good.ratios)}
    # min(ρ, 1.2) − 1 and −max(ρ, 0.8) + 1
    assert good.values[0] == pytest.approx(-0.5, abs=1e-3)
    assert good.values[-1] == pytest.approx(0.2, abs=1e-3)
    assert bad.values[0] == pytest.approx(0.2, abs=1e-3)
    assert bad.values[-1] == pytest.approx(-0.5, abs=1e-3)
    assert good.moves[at[1.1]] and not good.moves[-1] and not bad.moves[0]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_has_a_curve_that_learns_at_one(preset: str) -> None:
    for sign in (1.0, -1.0):
        found = curve(Objective.parse(preset), sign)
        middle = min(range(61), key=lambda i: abs(found.ratios[i] - 1))
        assert all(map(math.isfinite, found.values)) and found.moves[middle]
        assert sign * (found.values[middle + 1] - found.values[middle - 1]) > 0
        lines = plot(found)
        assert len(lines) == 11 and max(map(len, lines)) <= 80


def test_curve_of_cispo_is_what_it_trains_not_its_value() -> None:
    # slope ρ up to the cap of 5, then 5: ρ − 1, then 4 + 5·log(ρ/5)
    found = curve(Objective.parse("cispo"), 1.0)
    assert found.values[-1] == pytest.approx(4 + 5 * math.log(11 / 5), abs=1e-2)
    assert all(found.moves)


def test_plot_by_hand() -> None:
    lines = plot(Curve([0.0, 1.0, 2.0], [0.0, 1.0, 1.0], [True, True, False]), height=2)
    assert lines == [
        "       1 │ ●·",
        "       0 │●  ",
        "         └───",
        "          0ρ2",
    ]
    assert plot(Curve([0.0, 1.0], [3.0, 3.0], [False, False]), height=3)[1].endswith("··")


def test_every_spec_that_the_docs_show_is_one() -> None:
    page = DOCS.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    shown = re.findall(r"^objective: (.*)$", blocks, re.MULTILINE)
    lines = re.findall(r"^lydite objective ([^-#\n]+)", page, re.MULTILINE)
    # in the text, names joined by a plus and mappings that start with a preset
    names = {name for name in re.findall(r"`([\w+]+\+\w+)`", page) if name[0] != "+"}
    mappings = re.findall(r"`(\{preset: [^`]*\})`", page)
    assert len(shown) > 4 and len(lines) > 2 and len(names) > 4
    for spec in [*map(yaml.safe_load, [*shown, *mappings]), *names]:
        if spec != "gspo+clip_higher" and "importance" not in str(spec):
            Objective.parse(spec)
    for line in lines:
        words = line.split()
        settings = dict(word.split("=") for word in words if "=" in word)
        given = {key: yaml.safe_load(value) for key, value in settings.items()}
        Objective.parse({"preset": [w for w in words if "=" not in w], **given})


def test_the_surrogate_that_the_docs_add(monkeypatch: pytest.MonkeyPatch) -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## Add a surrogate")[2]
    function, line = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[:2]
    room = dict(vars(surrogate))
    exec(function, room)
    ((name, added),) = eval("{" + line + "}", room).items()
    monkeypatch.setitem(surrogate.SURROGATES, name, added)
    spec = {"preset": "grpo", "surrogate": "importance", "clip_low": None, "clip_high": None}
    objective = Objective.parse(spec)
    assert "surrogate: gain = ρA" in describe(objective)
    got, _ = objective.loss(
        policy=torch.tensor([[3.0, 0.5]]).log(),
        old=torch.zeros(1, 2),
        advantages=torch.tensor([2.0]),
        mask=torch.ones(1, 2),
        counts=Counts(2, 1, 1),
    )
    assert got.item() == pytest.approx(-(6 + 1) / 2)
    assert curve(objective, 1.0).values[-1] == pytest.approx(2.0, abs=1e-3)
    with pytest.raises(UserError, match="has no clip range"):
        Objective.parse({"preset": "grpo", "surrogate": "importance"})
