"""Each command does what its help says."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import command, recipe, rl_stage, start, write

import lydite
from lydite.watch.samples import read_samples

PROBLEMS = [{"question": f"add {n}+1", "answer": str(n + 1), "kind": "add"} for n in range(10, 16)]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_run_then_run_again(cli: Any, file: Path, tmp_path: Path) -> None:
    first = cli("run", file, "stages.1.steps=2", "--out", "here")
    assert first.exit_code == 0, first.stderr
    assert first.stderr == ""
    assert "here/model" in first.stdout and "heldout" in first.stdout
    summary = json.loads((tmp_path / "here/summary.json").read_text())
    assert [s["steps"] for s in summary["stages"]] == [3, 2]
    assert cli("run", file, "stages.1.steps=2", "--out", "here").exit_code == 0
    assert json.loads((tmp_path / "here/summary.json").read_text()) == summary


def test_the_lineage_of_a_run_is_a_tree(cli: Any, file: Path, tmp_path: Path) -> None:
    assert cli("run", file, "stages.1.steps=1", "--out", "here").exit_code == 0
    record = json.loads((tmp_path / "here/stages/rl/artifact.json").read_text())
    told = cli("lineage", "here")
    assert told.exit_code == 0
    line = next(line for line in told.stdout.splitlines() if "rl (rl)" in line)
    assert record["fingerprint"][:12] in line and line.startswith("    ")
    assert f"data train {record['data']['train'][:12]}" in told.stdout
    nothing = cli("lineage", "nowhere")
    assert nothing.exit_code == 2 and "no folder of a run" in nothing.stderr


def test_without_out_a_run_lies_under_its_name(cli: Any, file: Path, tmp_path: Path) -> None:
    assert cli("run", file, "name=mine", "stages.0.steps=1", "stages.1.steps=1").exit_code == 0
    assert (tmp_path / "runs/mine/summary.json").is_file()


def test_dry_run_shows_prompts_checks_golds_and_writes_nothing(
    cli: Any, file: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = cli("run", file, "verifier=exact", "--dry-run", "--out", "out")
    assert result.exit_code == 0, result.stdout
    assert sorted(tmp_path.rglob("*")) == before
    said = result.stdout
    shown = said.split("prompts of rl")[1].split("prompts of heldout")[0]
    assert shown.count("<bos><user>") == 3 and shown.count("<assistant>") == 3
    assert "gold answers verifies against itself" in said
    assert "in all, at most:" in said
    assert "failed" not in said and "skipped" not in said


def test_dry_run_fails_on_a_bad_gold(cli: Any, file: Path, tmp_path: Path) -> None:
    rows = [*PROBLEMS, {"question": "add 1+1", "answer": "\\frac{1"}]
    lines(tmp_path / "p.jsonl", rows)
    result = cli("run", file, "verifier=math", "tasks.train={path: p.jsonl}", "--dry-run")
    assert result.exit_code == 2
    failed = [line for line in result.stdout.splitlines() if line.startswith("failed")]
    assert failed and "verifier" in failed[0], result.stdout


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["stages.1.group_size=1"], "group size: 1"),
        (["stages.0.task=train"], "no worked solution"),
        (["stages.1.sampling.max_tokens=200"], "stages.rl.sampling.max_tokens"),
        (["evaluation.sampling.max_tokens=200"], "evaluation.sampling.max_tokens"),
        (["verifier.function=gone.py:f"], "no file gone.py"),
        (["evaluation.tasks=[train]"], "is trained on by stage"),
        (["tasks.train={path: offline.jsonl}"], "no file offline.jsonl"),
    ],
)
def test_dry_run_finds_what_a_run_would(
    overrides: list[str], says: str, cli: Any, file: Path, tmp_path: Path
) -> None:
    result = cli("run", file, *overrides, "--dry-run")
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


def test_dry_run_skips_what_cannot_be_reached(cli: Any, file: Path) -> None:
    values = yaml.safe_load(file.read_text())
    values["model"] = {"path": "somebody/some-model"}
    result = cli("run", write(values, file), "--dry-run")
    assert result.exit_code == 0, result.stdout
    model = [line for line in result.stdout.splitlines() if " model " in line]
    assert model[0].startswith("skipped")
    assert "ok       verifier" in result.stdout


def test_dry_run_skips_a_dataset_that_cannot_be_reached(cli: Any, file: Path) -> None:
    pytest.importorskip("datasets")
    result = cli("run", file, "tasks.train={hub: somebody/some-data}", "--dry-run")
    assert result.exit_code == 0, result.stdout
    assert "skipped  task train" in result.stdout


def test_eval_of_a_file(cli: Any, finished: Path, tmp_path: Path) -> None:
    lines(tmp_path / "test.jsonl", PROBLEMS)
    result = cli(
        "eval", finished / "model", "--tasks", "test.jsonl", "--samples", 2, "--max-tokens", 6,
        "--output", "answers.parquet",
    )  # fmt: skip
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "avg@2" in result.stdout and "test" in result.stdout
    answers = read_samples(tmp_path / "answers.parquet")
    assert len(answers) == 12
    assert {a.sample for a in answers} == {0, 1}
    pairs = zip(answers[::2], answers[1::2], strict=True)
    assert any(a.completion != b.completion for a, b in pairs), "both samples are the greedy one"


def test_eval_by_a_recipe_repeats_the_score_of_the_run(
    cli: Any, finished: Path, tmp_path: Path
) -> None:
    result = cli(
        "eval", finished / "model", "--recipe", finished.parent / "recipe.yaml",
        "--tasks", "heldout", "-o", "answers.parquet",
    )  # fmt: skip
    assert result.exit_code == 0, (result.stderr, result.exception)
    mine = read_samples(tmp_path / "answers.parquet")
    theirs = read_samples(finished / "samples/rl-heldout/step-000004.parquet")
    assert [a.completion for a in mine] == [a.completion for a in theirs]


def test_eval_tells_whether_a_model_obeys(cli: Any, finished: Path, tmp_path: Path) -> None:
    lines(tmp_path / "test.jsonl", PROBLEMS)
    asked = ["--tasks", "test.jsonl", "--max-tokens", 6, "--thinking", "unflagged"]
    result = cli("eval", finished / "model", *asked)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "obeys" in result.stdout and "test.unflagged" in result.stdout


def test_eval_of_two_files_of_one_name(cli: Any, finished: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        lines(tmp_path / folder / "test.jsonl", PROBLEMS[:3])
    result = cli(
        "eval", finished / "model", "-t", "a/test.jsonl", "-t", "b/test.jsonl", "--max-tokens", 3
    )
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert "a/test.jsonl" in result.stdout and "b/test.jsonl" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tasks", "gone.jsonl"], "no file gone.jsonl"),
        (["--tasks", "test.jsonl", "--verifier", "maths"], "maths"),
        (["--tasks", "test.jsonl", "--prompt", "Body"], "Body"),
        (["--tasks", "test.jsonl", "--max-tokens", "500"], "max_tokens"),
        (["--tasks", "nothing", "--recipe", "recipe.yaml"], "has no task 'nothing'"),
        (["--tasks", "test.jsonl", "--thinking", "on"], "--thinking: no mode 'on'; one of both"),
        (["--tasks", "test.jsonl", "--thinking", "both"], "has no switch enable_thinking"),
        (["--tasks", "test.jsonl", "--output", "out.csv"], "--output out.csv: give a .parquet"),
        (["--tasks", "test.jsonl", "--output", "gone/out.parquet"], "in a folder that exists"),
    ],
)
def test_eval_mistakes(
    arguments: list[str], says: str, cli: Any, file: Path, finished: Path, tmp_path: Path
) -> None:
    lines(tmp_path / "test.jsonl", PROBLEMS)
    result = cli("eval", finished / "model", *arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and says in result.stderr


def test_eval_of_a_run_names_its_model(cli: Any, finished: Path, tmp_path: Path) -> None:
    lines(tmp_path / "test.jsonl", PROBLEMS)
    result = cli("eval", finished, "--tasks", "test.jsonl")
    assert result.exit_code == 2
    assert f"did you mean {finished / 'model'}?" in result.stderr


def test_verify_says_why_a_line_has_no_verdict(cli: Any, tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", [{"gold": "1", "completion": "1"}, {"completion": "1"}])
    result = cli("verify", "--verifier", "math", "--input", "in.jsonl")
    assert "no verdict on line 2: the problem has no reference answer" in result.stdout


def test_verify(cli: Any, tmp_path: Path) -> None:
    rows = [
        {"gold": "3/4", "completion": "So \\boxed{0.75}.", "expected": True},
        {"gold": "3/4", "completion": "So \\boxed{0.5}.", "expected": False},
        {"gold": "3/4", "completion": "", "expected": True},
    ]
    lines(tmp_path / "in.jsonl", rows)
    result = cli("verify", "--verifier", "math", "--input", "in.jsonl", "--output", "out.jsonl")
    assert result.exit_code == 0, (result.stderr, result.exception)
    verdicts = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [v["outcome"] for v in verdicts] == ["correct", "wrong", "unparseable"]
    assert [v["reward"] for v in verdicts] == [1.0, 0.0, 0.0]
    assert "false positives: 0 of 3" in result.stdout
    assert "false negatives: 1 of 3 (lines 3)" in result.stdout
    assert "p95" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--verifier", "math", "--input", "gone.jsonl"], "gone.jsonl: no such file"),
        (["--verifier", "mth", "--input", "in.jsonl"], "mth"),
        (["--verifier", "gone.yaml", "--input", "in.jsonl"], "gone.yaml"),
        (["--verifier", "math", "--input", "bad.jsonl"], "bad.jsonl"),
    ],
)
def test_verify_mistakes(arguments: list[str], says: str, cli: Any, tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", [{"gold": "1", "completion": "1"}])
    (tmp_path / "bad.jsonl").write_text("{nonsense\n")
    result = cli("verify", *arguments)
    assert result.exit_code == 2, (result.output, result.exception)
    assert len(result.stderr.splitlines()) == 1 and says in result.stderr


def test_recipes(cli: Any) -> None:
    result = cli("recipes")
    assert result.exit_code == 0
    assert "quickstart" in result.stdout


EXAMPLES = {
    (): "lydite run quickstart",
    ("run",): "lydite run recipes/quickstart.yaml",
    ("eval",): "lydite eval ./my-model --tasks",
    ("verify",): "lydite verify --verifier math",
    ("recipes",): "lydite run quickstart",
}


@pytest.mark.parametrize("name", EXAMPLES, ids=lambda n: " ".join(n) or "lydite")
def test_help_teaches_by_example(name: tuple[str, ...], cli: Any) -> None:
    result = cli(*name, "--help")
    assert result.exit_code == 0
    assert EXAMPLES[name] in " ".join(result.stdout.split())


def test_help_does_not_wait_for_torch() -> None:
    """Nor for anything else that no help needs: of Lydite, nothing but the commands is loaded."""
    code = (
        "import sys\n"
        "from lydite.cli.main import app\n"
        "commands = [c.name or c.callback.__name__ for c in app.registered_commands]\n"
        "assert 'run' in commands and 'eval' in commands and 'doctor' in commands\n"
        "for name in ([], *([command] for command in commands)):\n"
        "    try: app([*name, '--help'])\n"
        "    except SystemExit as end: assert not end.code\n"
        "slow = ['torch', 'transformers', 'numpy', 'pyarrow', 'omegaconf', 'yaml', 'jinja2']\n"
        "loaded = [name for name in slow if name in sys.modules]\n"
        "ours = [n for n in sys.modules if n.startswith('lydite.') and 'cli' not in n]\n"
        "assert not loaded + ours, loaded + ours\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--install-completion" in done.stdout and "--show-completion" in done.stdout


def test_no_command_shows_the_help(cli: Any) -> None:
    assert "Usage:" in cli().output


def running(file: Path, out: Path, tmp_path: Path) -> Any:
    """A ``lydite run`` that is in the middle of its RL stage."""
    process = start(command, (["run", str(file), "--out", str(out)], tmp_path / "said"))
    end = time.monotonic() + 60
    while not (out / "samples/rl/step-000002.parquet").exists():
        assert time.monotonic() < end and process.is_alive(), (tmp_path / "said").read_text()
        time.sleep(0.02)
    return process


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A run that nobody waits for."""
    values = recipe([rl_stage(steps=100_000)], tmp_path, checkpoint={"every": 1})
    values["verifier"]["isolation"] = "process"
    return write(values, tmp_path / "long.yaml")


def test_a_folder_is_for_one_process_and_control_c_is_one_line(
    cli: Any, long: Path, tmp_path: Path
) -> None:
    process = running(long, tmp_path / "out", tmp_path)
    try:
        before = (tmp_path / "out/recipe.yaml").read_bytes()
        result = cli("run", long, "--out", "out")
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert "another process is running there" in line
        assert (tmp_path / "out/recipe.yaml").read_bytes() == before
        # As a terminal does it: to the whole group, the workers included.
        os.killpg(process.pid, signal.SIGINT)
        process.join(30)
        assert process.exitcode == 130
    finally:
        process.kill()
    said = (tmp_path / "said").read_text()
    assert said == "lydite: stopped; the same command goes on from the last checkpoint\n"
    assert list((tmp_path / "out/checkpoints/rl").glob("step-*"))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "target",
    ["lydite.train.checkpoint:save_file", "lydite.pipeline.runner:shutil.copytree",
     "lydite.model.saving:_write", "lydite.watch.files:os.fsync", "lydite.watch.events:os.write"],
)  # fmt: skip
def test_a_full_disk_is_one_line_and_costs_nothing(
    target: str, cli: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = finished.parent / "recipe.yaml"
    with monkeypatch.context() as patch:
        place, name = target.split(":")
        patch.setattr(f"{place}.{name}", full)
        result = cli("run", file, "--out", "out")
        assert result.exit_code == 2, (result.output, result.exception)
        (line,) = result.stderr.splitlines()
        assert "o space left" in line, line
    assert not list((tmp_path / "out").rglob("*.partial"))
    assert cli("run", file, "--out", "out").exit_code == 0
    weights = "model/model.safetensors"
    assert (tmp_path / "out" / weights).read_bytes() == (finished / weights).read_bytes()


def test_a_file_size_limit_is_one_line(finished: Path, tmp_path: Path) -> None:
    """A real limit of the system, where safetensors does the writing."""
    process = start(limited, (finished.parent / "recipe.yaml", tmp_path / "out", tmp_path / "said"))
    process.join(60)
    assert process.exitcode == 2
    (line,) = (tmp_path / "said").read_text().splitlines()
    assert line.startswith("lydite: ") and "too large" in line


def limited(file: Path, out: Path, said: Path) -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
    command(["run", str(file), "--out", str(out)], said)


def test_the_version_is_the_packages_own(cli: Any) -> None:
    result = cli("--version")
    assert result.exit_code == 0 and result.stdout.strip() == lydite.__version__


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "lydite", "--version"], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == lydite.__version__, ran.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_control_c_is_heard_where_python_loses_it(
    cli: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a destructor an exception goes no further; the run stops at its next event all the
    same.
    """
    from lydite.train.rl import RLTrainer

    class Deaf:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    step = RLTrainer.step

    def interrupted(self: RLTrainer, number: int) -> Any:
        Deaf()
        return step(self, number)

    monkeypatch.setattr(RLTrainer, "step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    result = cli("run", file, "--out", "out")
    assert result.exit_code == 130
    assert "stopped; the same command goes on" in result.stderr
    assert signal.getsignal(signal.SIGINT) == before
