"""What a sandboxed interpreter needs of this machine's file system: little."""

from __future__ import annotations

import functools
import marshal
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lydite.config import UserError

# Reads its own program from the control socket: nothing of Lydite is visible in the sandbox.
BOOTSTRAP = """
import gc, marshal, os, sys
gc.disable()
control, channel = map(int, sys.argv[1:])
def take(size):
    parts = b""
    while len(parts) < size:
        part = os.read(control, size - len(parts))
        if not part: os._exit(0)
        parts += part
    return parts
for name, code in marshal.loads(take(int.from_bytes(take(4), "big"))):
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
module.serve(control, channel)
"""
# Extensions whose libraries are not shown: windows, terminals, databases of the system.
NOT_SERVED = ("_tkinter", "_curses", "readline", "_dbm", "_gdbm", "nis", "ossaudiodev", "_test",
              "_xx", "xx")  # fmt: skip
HIDDEN = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "turtledemo")


@dataclass(frozen=True, slots=True)
class Runtime:
    """An interpreter and all it needs to run: absolute paths of this machine."""

    python: str
    stdlib: str
    hidden: tuple[str, ...]
    libraries: tuple[str, ...]

    def command(self, control: int, channel: int) -> list[str]:
        """The interpreter without site, user or environment's paths."""
        return [self.python, "-s", "-S", "-P", "-B", "-c", BOOTSTRAP, str(control), str(channel)]


@functools.cache
def find_runtime() -> Runtime:
    """This interpreter, without the virtual environment it may be in.

    Raises:
        UserError: what it needs cannot be listed.
    """
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
    dynamic = [
        str(path)
        for path in sorted(Path(stdlib, "lib-dynload").glob("*.so"))
        if not path.name.startswith(NOT_SERVED)
    ]
    hidden = tuple(p for name in HIDDEN if os.path.isdir(p := os.path.join(stdlib, name)))
    return Runtime(python, stdlib, hidden, libraries_of([python, *dynamic]))


def libraries_of(binaries: Iterable[str]) -> tuple[str, ...]:
    """The shared libraries that binaries load, the loader among them."""
    try:
        listed = subprocess.run(
            ["ldd", *binaries], capture_output=True, text=True, check=False, timeout=60
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"sandbox: cannot list the interpreter's shared libraries ({error}); install ldd "
            "(Debian, Ubuntu: apt-get install libc-bin)"
        ) from error
    found = re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", listed, re.MULTILINE)
    return tuple(sorted(set(found)))


# What runs inside, each after what it imports; found there under their full names.
INSIDE = ("script", "settle", "folder", "inside")


@functools.cache
def inside_code() -> bytes:
    """The first process's program, compiled, after its length."""
    modules = []
    for name in INSIDE:
        source = Path(__file__).with_name(f"{name}.py").read_text("utf-8")
        code = compile(source, f"<sandbox {name}>", "exec", dont_inherit=True)
        modules.append((f"lydite.verify.sandbox.{name}", code))
    blob = marshal.dumps(modules)
    return len(blob).to_bytes(4, "big") + blob
