from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("types", "config", "tasks", "verify", "watch")


def test_what_needs_no_torch_loads_without_it() -> None:
    """The contract sees Lydite's own imports; this sees what its libraries bring along too."""
    files = [f for room in LIGHT for f in [*ROOT.glob(f"src/lydite/{room}.py"),
                                           *ROOT.glob(f"src/lydite/{room}/**/*.py")]]  # fmt: skip
    names = [".".join(f.relative_to(ROOT / "src").with_suffix("").parts) for f in files]
    modules = [name.removesuffix(".__init__") for name in names if "__main__" not in name]
    assert "lydite.watch.events" in modules and "lydite.types" in modules
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("ops/layout.py", "import lydite.watch.events", "only from rooms below"),
        ("watch/words.py", "import lydite.verify.pool", "only from rooms below"),
        ("watch/words.py", "import torch", "without torch"),
        ("train/rl.py", "import ray", "ray stays"),
        ("rollout/local.py", "import vllm", "vllm stays"),
        ("train/rl.py", "import transformers", "transformers stays"),
    ],
)
def test_a_planted_import_breaks_its_contract(
    file: str, line: str, contract: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "src" / "lydite", tmp_path / "lydite")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "lydite" / file).open("a") as source:
        source.write(f"\n{line}\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [line for line in done.stdout.splitlines() if "BROKEN" in line]
    assert any(contract in line for line in broken), done.stdout
