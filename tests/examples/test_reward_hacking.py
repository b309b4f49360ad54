"""The reward-hacking example: a run of the smallest size, and what it says of runs by hand."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from small_runs import MODEL

from lydite.config import validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.saving import save_policy
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.recipe import load_recipe
from lydite.verify.settings import VerifierConfig
from lydite.watch.events import StepDone, iterate_events
from lydite.watch.samples import Sample, write_samples

FILE = Path(__file__).parents[2] / "examples" / "reward_hacking.py"
SMALLEST = ["--steps", "2", "--prompts", "2", "--heldout", "4", "--audited", "1"]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reward_hacking", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sample(number: int, step: int, completion: str, right: bool) -> Sample:
    return Sample(
        step=step, problem_id=f"p{number}", sample=0, prompt=f"user: question {number}",
        completion=completion, reward=float(right), outcome="", reference="3",
    )  # fmt: skip


def test_the_whole_of_it_in_small(
    example: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    start, out = tmp_path / "starts" / "7", tmp_path / "out"
    save_policy(load_policy(validate(ModelConfig, MODEL), "cpu", 0), start)
    arguments = [
        *SMALLEST,
        "--seeds",
        "7",
        "--start",
        f"{start.parent}/{{seed}}",
        "--out",
        str(out),
    ]
    curves = example.main(arguments)
    said = capsys.readouterr().out
    careless, exact = re.findall(r"audit of .*: grade (\w); of (\d+) wrong answers (\d+)", said)
    assert careless[0] == "F" and int(careless[2]) > 30
    assert exact[0] in "AB" and int(exact[2]) < 5
    assert re.search(r"(\d+) of +\1  every number; gold \d: -20, -19", said)
    for name in ("contains_gold", "exact"):
        curve = curves[name][7]
        assert len(curve.reward) == len(curve.length) == 2
        assert sorted(curve.accuracy) == [0, 2]
    assert "| gold anywhere in the text | 7 |" in said and "| exact answer | 7 |" in said
    assert said.count("  step   0  ") == 4
    assert (out / "reward_hacking.png").read_bytes().startswith(b"\x89PNG")
    # Given again it trains nothing, and says the same of what lies there.
    monkeypatch.setattr(example, "audit", lambda *_: None)
    assert example.main(arguments) == curves
    events = iterate_events(out / "7/exact/events.jsonl")
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2]


def test_workers_that_import_it_need_no_torch() -> None:
    code = f"import runpy, sys; runpy.run_path({str(FILE)!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_the_start_is_the_quickstart_before_its_rl(example: ModuleType, tmp_path: Path) -> None:
    sizes = [f"model.init.{key}={value}" for key, value in MODEL["init"].items()]
    tasks = [f"tasks.{name}.generated.count=8" for name in ("base", "cold_start")]
    steps = [f"stages.{n}.{key}=1" for n in (0, 1) for key in ("steps", "batch_size")]
    model = example.cold_start(tmp_path / "start", ["seed=5", *sizes, *tasks, *steps])
    assert (model / "model.safetensors").is_file()
    assert sorted(each.name for each in (tmp_path / "start/stages").iterdir()) == [
        "base", "cold_start",
    ]  # fmt: skip


def test_the_exact_reward_is_the_quickstarts(example: ModuleType) -> None:
    quickstart = load_recipe(find_recipe("quickstart"))
    assert validate(VerifierConfig, example.EXACT, "reward") == quickstart.verifier


@pytest.mark.parametrize(
    ("text", "gold", "paid"),
    [("<answer>3</answer>", "3", 1.0), ("F1F2F3F4", "3", 1.0), ("F1F2", "3", 0.0), ("", "3", 0.0)],
)
def test_the_careless_reward_pays_for_the_gold_anywhere(
    example: ModuleType, text: str, gold: str, paid: float
) -> None:
    assert example.contains_gold(["q"], [text], [gold], other=["x"]) == [paid]


def test_answers_that_were_right_and_are_no_more_come_first(
    example: ModuleType, tmp_path: Path
) -> None:
    texts = {
        0: [("<answer>1</answer>", False), ("<answer>1</answer>", False)],
        10: [("<answer>2</answer>", False), ("<answer>3</answer>", True)],
        20: [("<answer>3</answer>", True), ("1234", False)],
    }
    for step, pairs in texts.items():
        rows = [sample(n, step, *pair) for n, pair in enumerate(pairs)]
        write_samples(tmp_path / "samples", "rl-heldout", step, rows)
    curve = example.Curve([0.0], [1.0], {0: 0.0, 10: 0.5, 20: 0.5}, 0.5)
    assert curve.best == 10
    assert example.show_answers(tmp_path, curve, 1).splitlines() == [
        "question 1   (gold 3)",
        "  step   0  wrong, no gold     <answer>1</answer>",
        "  step  10  right, gold in it  <answer>3</answer>",
        "  step  20  wrong, gold in it  1234",
    ]


def test_a_row_of_the_table(example: ModuleType) -> None:
    reward = [0.0] * 5 + [0.5] * 10 + [1.0] * 5
    curve = example.Curve(reward, [10.0] * 10 + [20.0] * 10, {0: 0.3, 10: 0.9, 20: 0.02}, 0.96)
    row = example.table({"contains_gold": {4: curve}}).splitlines()[-1]
    assert row == (
        "| gold anywhere in the text | 4 | 0.25 → 0.75 | 10 → 20 | 30.0% | 90.0% (step 10) | 2.0% "
        "| 96.0% |"
    )
