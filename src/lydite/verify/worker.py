"""A worker process of the pool: ``python -m lydite.verify.worker IN_FD OUT_FD HOST_PID``, started
by the pool only.

Reads pickled frames from the host, answers in JSON. Its standard output goes to standard error, so
that a reward function may print without disturbing what the command prints.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from lydite.config import UserError
from lydite.verify.pool import HEADER, Handler

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serves until the host closes the pipe."""
    source, sink, host = (int(argument) for argument in arguments)
    _die_with(host)
    os.dup2(2, 1)
    setup = _receive(source)
    if setup is None:
        return 0
    settings = pickle.loads(setup)
    try:
        calls = [_load(handler) for handler in settings["handlers"]]
    except UserError as error:
        _send(sink, {"refused": str(error)})
        return 0
    _limit_memory(settings["memory_mb"])
    _send(sink, {"ready": True})
    while (frame := _receive(source)) is not None:
        number, handler, payload, seconds = pickle.loads(frame)
        _limit_cpu(seconds)
        _send(sink, {"number": number, **_call(calls[handler], payload)})
    return 0


def _load(handler: Handler) -> Callable[[Any], Any]:
    module, _, name = handler.target.partition(":")
    call: Callable[[Any], Any] = getattr(importlib.import_module(module), name)(handler.setup)
    return call


def _call(call: Callable[[Any], Any], payload: object) -> dict[str, Any]:
    try:
        return {"status": "done", "value": call(payload)}
    except UserError as error:
        return {"status": "refused", "detail": str(error)}
    except MemoryError:
        return {"status": "memory", "detail": "more memory than the limit"}
    except Exception as error:
        return {"status": "failed", "detail": f"{type(error).__name__}: {error}"[:500]}


def _die_with(host: int) -> None:
    """Linux: be killed when the host ends, even while stuck in code that never reads the pipe
    again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != host:
            os._exit(0)


def _limit_memory(megabytes: int) -> None:
    """Caps the address space at what is mapped now plus the limit, where the system can tell and
    do so.
    """
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + megabytes * 2**20, hard))
    except (OSError, ValueError):
        return


def _limit_cpu(seconds: float) -> None:
    """A second guard behind the host's wall limit: at least a second more of processor time than
    that.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 2
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _receive(source: int) -> bytes | None:
    head = _read(source, HEADER.size)
    return None if head is None else _read(source, HEADER.unpack(head)[0])


def _read(source: int, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size > 0:
        part = os.read(source, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(sink: int, reply: dict[str, Any]) -> None:
    body = json.dumps(reply).encode()
    view = memoryview(HEADER.pack(len(body)) + body)
    while view:
        view = view[os.write(sink, view) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
