"""``lydite doctor`` says what is there, what is not, and what to do about it."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from lydite.cli import doctor
from lydite.verify.sandbox import machine
from lydite.verify.sandbox.backends import fault_of

TRIED = {"torch", "transformers", "cores", "memory", "gpu", "sandbox", "bubblewrap", "landlock",
         "user namespaces", "seccomp", "control groups"}  # fmt: skip


def faults(monkeypatch: pytest.MonkeyPatch, **found: str | None) -> None:
    def fault(name: str) -> str | None:
        return found[name]

    fault.__wrapped__ = fault  # type: ignore[attr-defined]
    monkeypatch.setattr(machine, "fault_of", fault)


def test_every_line_is_there_and_the_verdict_is_that_of_the_trials(cli: Any) -> None:
    done = cli("doctor", "--json")
    found = json.loads(done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert set(checks) >= TRIED | {f"extra {name}" for name in doctor.EXTRAS}
    works = {name: fault_of(name) is None for name in ("bubblewrap", "landlock")}
    assert found["ok"] == any(works.values()) == (done.exit_code == 0)
    for name, working in works.items():
        assert (checks[name]["state"] == "ok") == working
    for check in checks.values():
        assert check["state"] in ("ok", "missing", "optional") and check["detail"]
        assert "\n" not in check["detail"] + check["remedy"]


def test_the_first_that_works_is_named(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults(monkeypatch, bubblewrap="bwrap is not installed", landlock=None)
    done = cli("doctor")
    assert done.exit_code == 0
    assert "landlock will be used for untrusted programs" in done.stdout
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if "bwrap is not installed" in line)
    assert lines[at].startswith("optional  bubblewrap")
    assert "apt-get install bubblewrap" in lines[at + 1]


def test_no_sandbox_is_an_error_with_a_remedy(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults(monkeypatch, bubblewrap="No permissions", landlock="the kernel has no Landlock")
    done = cli("doctor")
    assert done.exit_code == 1
    assert "missing   sandbox" in done.stdout and "apt-get install bubblewrap" in done.stdout
    assert "No permissions" in done.stdout and "the kernel has no Landlock" in done.stdout
    assert json.loads(cli("doctor", "--json").stdout)["ok"] is False


def test_an_absent_extra_is_named_with_its_remedy(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "duckdb" else real(name)
    )
    faults(monkeypatch, bubblewrap="no", landlock=None)
    out = cli("doctor").stdout
    assert "no duckdb" in out and "pip install 'lydite[sql]'" in out


def test_an_installation_that_is_broken_is_not_called_installed(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.import_module

    def broken(name: str, package: str | None = None) -> Any:
        if name == "transformers":
            raise RuntimeError("libfoo.so: cannot open\nshared object")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", broken)
    faults(monkeypatch, bubblewrap="no", landlock=None)
    out = cli("doctor").stdout
    assert "missing   transformers" in out and "libfoo.so: cannot open shared object" in out


def test_extras_are_those_of_the_package() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) == set(extras) - {"dev", "parity"}


def test_a_fault_of_namespaces_names_what_the_system_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_NEW_USER_NAMESPACE", "raise SystemExit(1)")
    check = machine._user_namespaces()
    assert check.state == "optional" and check.remedy
