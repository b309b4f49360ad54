"""Logs of other trainers, in the forms that they write."""

import json
import math
from pathlib import Path

import pytest

from lydite.config import UserError
from lydite.watch.diagnosis.diagnose import diagnose
from lydite.watch.diagnosis.foreign import read_log

STEPS = range(1, 21)


def trl(step: int) -> dict[str, float]:
    return {
        "step": step,
        "loss": 0.0,
        "grad_norm": 0.4,
        "learning_rate": 1e-6,
        "reward": 0.1,
        "reward_std": 0.01,
        "frac_reward_zero_std": 0.9,
        "completions/mean_length": 200.0,
        "completions/clipped_ratio": 0.5,
        "rewards/accuracy_reward/mean": 0.05,
        "rewards/format_reward/mean": 0.99,
        "entropy": 0.3,
    }


def test_trl(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-20" / "trainer_state.json"
    path.parent.mkdir()
    history = [*map(trl, STEPS), {"step": 20, "eval_reward": 0.2}, {"step": 20, "train_runtime": 3}]
    path.write_text(json.dumps({"global_step": 20, "log_history": history}))
    for given in (path, tmp_path):
        (curves,) = read_log(given)
        assert curves.steps == tuple(STEPS)
        assert curves.mean("informative_groups") == pytest.approx(0.1)
        assert curves.mean("truncated") == 0.5
        assert curves.mean("reward_format_reward") == 0.99
        assert curves.held_out[-1].avg == 0.2
        found = {finding.rule: finding for finding in diagnose([curves])}
        assert {"tied_groups", "truncation", "loss_near_zero"} <= found.keys()
        assert found["truncation"].overrides == ()
        assert "max_completion_length" in found["truncation"].remedy


def test_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    for last in (9, 100):
        path = tmp_path / f"checkpoint-{last}" / "trainer_state.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"log_history": [trl(s) for s in range(1, last + 1)]}))
    (curves,) = read_log(tmp_path)
    assert len(curves.steps) == 100


def test_verl(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [
        {
            "step": s,
            "data": {
                "actor/entropy": 1.0 / s,
                "critic/rewards/mean": 0.3,
                "response_length/clip_ratio": 0.0,
                "val-core/gsm8k/acc/mean@1": 0.5,
            },
        }
        for s in STEPS
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (curves,) = read_log(path)
    assert curves.values("entropy")[1] == 0.5
    assert curves.mean("reward") == pytest.approx(0.3)
    assert len(curves.held_out) == 20


def test_csv_with_columns_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,my score,note\n" + "".join(f"{s},{s / 20},x\n" for s in STEPS))
    (curves,) = read_log(path, {"reward": "my score"})
    assert curves.values("reward")[-1] == 1.0
    with pytest.raises(UserError, match=r"--map reward=other: the log has no 'other'"):
        read_log(path, {"reward": "other"})


def test_rows_without_a_step_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"reward": 1}\n{"reward": 2}\n')
    (curves,) = read_log(path)
    assert curves.steps == (1, 2)


def test_figures_of_one_step_in_several_rows_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "reward": 1}\n{"step": 1, "entropy": 2}\n')
    (curves,) = read_log(path)
    assert (curves.metrics["reward"], curves.metrics["entropy"]) == ((1.0,), (2.0,))


def test_gaps_are_nan_and_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "reward": 1}\n{"step": 2, "entropy": NaN, "reward": null}\n')
    (curves,) = read_log(path)
    assert curves.steps == (1, 2)
    assert math.isnan(curves.metrics["reward"][1])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [("a.json", "{}", "no log_history"), ("a.jsonl", "{\n", "cannot be read as a log"),
     ("a.jsonl", "", "holds no figures"), ("a.jsonl", "[1]\n", "no JSON object"),
     ("a.jsonl", '{"text": "x"}\n', "holds no figures"), ("a.csv", "a,b\n", "holds no figures"),
     ("a.json", "[" * 100_000, "cannot be read as a log")],
)  # fmt: skip
def test_what_is_no_log_is_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=says) as raised:
        read_log(path)
    assert "\n" not in str(raised.value)


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither a run, nor a file"):
        read_log(tmp_path / "none")


@pytest.mark.parametrize("kind", ["torch", "tensorboard"])
def test_tensorboard(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("tensorboard")
    if kind == "torch":
        from torch.utils.tensorboard import SummaryWriter as Writer
    else:
        from tensorboard.summary import Writer
    writer = Writer(str(tmp_path))
    for step in STEPS:
        writer.add_scalar("train/reward", step / 20, step)
        writer.add_scalar("eval/accuracy", 0.5, step)
    writer.close()
    (curves,) = read_log(tmp_path)
    assert curves.steps == tuple(STEPS)
    assert curves.values("reward")[-1] == 1.0
    assert curves.held_out[-1].avg == 0.5
