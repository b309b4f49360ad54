"""``lydite doctor``: what this machine has."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import lydite

if TYPE_CHECKING:
    from lydite.verify.sandbox.machine import Check

# What each extra brings, by the module that is imported.
EXTRAS = {
    "peft": ("peft",),
    "hub": ("datasets",),
    "gym": ("reasoning_gym",),
    "gguf": ("gguf",),
    "plot": ("matplotlib",),
    "sql": ("sqlglot", "duckdb"),
    "language": ("lingua",),
    "tensorboard": ("tensorboard",),
    "schema": ("jsonschema",),
    "cluster": ("ray",),
    "vllm": ("vllm",),
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Say what this machine has, and what to install for the rest.

    What runs programs was tried: each sandbox with a program that reports what it could get at.
    Lines marked `optional` are about things that nothing here needs. Exits with 1 if there is no
    sandbox for untrusted programs, which the `code` verifier needs.
    """
    # Imported here and below so that --help of the command line waits for none of it.
    from lydite.verify.sandbox.machine import sandbox_checks

    checks = [*_software(), *_hardware(), *sandbox_checks()]
    used = next(check for check in checks if check.name == "sandbox").state == "ok"
    if as_json:
        typer.echo(json.dumps({"ok": used, "checks": [asdict(check) for check in checks]}))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            typer.echo(f"{check.state:<8}  {check.name:<{width}}  {check.detail}")
            if check.remedy:
                typer.echo(f"{'':<8}  {'':<{width}}  → {check.remedy}")
    if not used:
        raise typer.Exit(1)


def _software() -> list[Check]:
    from lydite.verify.sandbox.machine import Check

    checks = [
        Check("lydite", "ok", lydite.__version__),
        Check("python", "ok", f"{platform.python_version()} on {platform.platform(terse=True)}"),
    ]
    for name in ("torch", "transformers"):
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a broken installation fails in many ways
            reason = " ".join(str(error).split())[:200]
            checks.append(Check(name, "missing", reason, f"pip install {name}"))
        else:
            checks.append(Check(name, "ok", str(module.__version__)))
    return [*checks, *(_extra(name, modules) for name, modules in EXTRAS.items())]


def _extra(name: str, modules: tuple[str, ...]) -> Check:
    from lydite.verify.sandbox.machine import Check

    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        remedy = f"pip install 'lydite[{name}]'"
        return Check(f"extra {name}", "optional", f"no {' and no '.join(absent)}", remedy)
    return Check(f"extra {name}", "ok", ", ".join(f"{m} {_version(m)}" for m in modules))


def _version(module: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module)
    except PackageNotFoundError:
        return "of no known version"


def _hardware() -> list[Check]:
    from lydite.verify.sandbox.machine import Check

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    checks = [Check("cores", "ok", str(cores)), _memory()]
    try:
        torch: Any = importlib.import_module("torch")
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
            names = [
                f"{torch.cuda.get_device_name(n)} ({torch.cuda.mem_get_info(n)[1] / 2**30:.0f} GiB)"
                for n in range(count)
            ]
            return [*checks, Check("gpu", "ok", ", ".join(names))]
        if torch.backends.mps.is_available():
            return [*checks, Check("gpu", "ok", "Apple GPU (mps)")]
    except Exception as error:
        return [*checks, Check("gpu", "optional", " ".join(str(error).split())[:200])]
    return [*checks, Check("gpu", "optional", "none that this torch can use; runs on the CPU")]


def _memory() -> Check:
    from lydite.verify.sandbox.machine import Check

    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return Check("memory", "optional", "the system does not say")
    sizes = {line.split(":")[0]: int(line.split()[1]) / 2**20 for line in lines if " kB" in line}
    return Check(
        "memory", "ok", f"{sizes['MemTotal']:.1f} GiB, {sizes['MemAvailable']:.1f} GiB free"
    )
