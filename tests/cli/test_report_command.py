"""``lydite report``: what it writes, and what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tensorboard")

RECORDED = Path(__file__).parents[1] / "watch/recorded"


def test_a_run_is_written_as_a_page_a_picture_and_event_files(cli: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED / "healthy_plain", run)
    written = cli("report", str(run))
    assert written.exit_code == 0 and (run / "report.html").read_text().startswith("<!doctype")
    files = ["--png", f"{tmp_path}/a.png", "--tensorboard", f"{tmp_path}/tb"]
    written = cli("report", str(run), *files, "--stage", "rl")
    assert written.exit_code == 0, written.output
    assert (tmp_path / "a.png").stat().st_size > 10_000 and list((tmp_path / "tb").iterdir())
    for wrong, said in (
        ([str(run), "--stage", "sft"], "no such stage; there is rl"),
        ([str(run / "nothing")], "neither a run, nor a file"),
    ):
        refused = cli("report", *wrong)
        assert refused.exit_code == 2 and said in refused.output


def test_another_trainers_log_is_drawn_too(cli: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": n, "reward": n / 10, "grad_norm": 0.1} for n in range(1, 9)]
    log.write_text("\n".join(map(json.dumps, rows)))
    refused = cli("report", str(log))
    assert refused.exit_code == 2 and "--html: name the file" in refused.output
    written = cli("report", str(log), "--html", f"{tmp_path}/p.html")
    assert written.exit_code == 0 and "Gradient norm" in (tmp_path / "p.html").read_text()
