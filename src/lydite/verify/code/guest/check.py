"""Test code, which is trusted, in a sandbox of its own: the candidate is elsewhere."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from typing import Any, NoReturn

from lydite.verify.code.guest.spelling import (
    TooLarge,
    Unspelled,
    first_compiled,
    new_module,
    read,
    spell,
)

CHANNEL = 3
NONCE_BYTES = 16


class Host:
    """The other end of descriptor 3: frames of a 4-byte length, the nonce of the request, and
    JSON.
    """

    nonce = b""

    def receive(self) -> dict[str, Any]:
        """The next request; the end of the process when the host hangs up."""
        size = int.from_bytes(self._take(4), "big")
        body = self._take(size)
        self.nonce = body[:NONCE_BYTES]
        frame: dict[str, Any] = json.loads(body[NONCE_BYTES:])
        return frame

    def reply(self, frame: dict[str, Any]) -> None:
        """Answers the last request."""
        body = self.nonce + json.dumps(frame).encode()
        left = memoryview(len(body).to_bytes(4, "big") + body)
        while left:
            left = left[os.write(CHANNEL, left) :]

    def _take(self, size: int) -> bytes:
        parts = []
        while size > 0:
            part = os.read(CHANNEL, min(size, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class Candidate:
    """Stands for the candidate in test code: arguments go out as data, results come back as data
    of exact built-in types.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            trees = [spell(value) for value in args]
            asked = {"args": trees, "kwargs": {k: spell(v) for k, v in kwargs.items()}}
        except Unspelled as error:
            large = isinstance(error, TooLarge)
            self.host.reply({"uncarried": str(error), "large": large, "calls": self.calls})
            os._exit(0)
        self.calls += 1
        self.host.reply({"call": asked})
        reply = self.host.receive()
        if "abandon" in reply:
            self.host.reply({"abandoned": True})
            os._exit(0)
        if "raised" in reply:
            raise raised(reply["raised"], reply["message"])
        return read(reply["value"])


def raised(names: Sequence[str], message: str) -> Exception:
    """What the candidate raised, as the nearest built-in exception. One that would end a loop or
    the process without a word (StopIteration, SystemExit) comes as RuntimeError.
    """
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            if issubclass(kind, (StopIteration, StopAsyncIteration)):
                break
            try:
                return kind(message)
            except TypeError:  # UnicodeDecodeError and its like want more than a message
                continue
    return RuntimeError(f"{names[0] if names else 'unknown'}: {message}")


def main() -> None:
    """Serves the host: each check in a process of its own, which ends with its verdict; or one
    check, where this process may start no other.
    """
    host = Host()
    while True:
        asked = host.receive()
        if asked["once"]:
            check(host, asked)
        child = os.fork()
        if child == 0:
            check(host, asked)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:  # without a verdict: this process ends likewise, and the host is told how
            os.kill(os.getpid(), max(-code, signal.SIGKILL))


def check(host: Host, asked: dict[str, Any]) -> NoReturn:
    """Runs test code and says how it went."""
    candidate = Candidate(host)
    verdict: dict[str, Any] = {}
    try:
        space = new_module("tests")
        with contextlib.suppress(SyntaxError):  # it may be the head of a function, without a body
            exec(first_compiled([asked["prefix"]]), space)
        space[asked["entry_point"]] = space["candidate"] = candidate
        space["Solution"] = type("Solution", (), {asked["entry_point"]: staticmethod(candidate)})
        exec(first_compiled([asked["test_code"]]), space)
        if callable(space.get("check")):
            space["check"](candidate)
        verdict["passed"] = True
    except BaseException as error:
        verdict["failed"] = type(error).__name__
        verdict["message"] = str(error)[:300]
    host.reply({**verdict, "calls": candidate.calls})
    os._exit(0)


if __name__ == "__main__":
    main()
