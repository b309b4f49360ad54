"""A candidate's code as something that the sandbox runs, and what its process says as data."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lydite.types import Outcome
from lydite.verify.code.guest import guest_files
from lydite.verify.code.languages import Language
from lydite.verify.code.values import Tree
from lydite.verify.sandbox import Ended, Program, Sandbox, SandboxLimits

LATE = ("timeout", "cpu", "memory")
HOW = {
    "timeout": "no result in time",
    "cpu": "more processor time than the limit",
    "memory": "more memory than the limit",
    "output": "more output than the limit",
}
# What a ``class Solution`` finds defined where such problems come from.
SOLUTION = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, comb, floor, gcd, inf, isqrt, lcm, log, log2, sqrt
from typing import *
"""
COMPILING = SandboxLimits(
    wall_seconds=30.0,
    cpu_seconds=30,
    memory_mb=2048,
    processes=8,
    file_mb=64,
    output_kb=32 * 1024,
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test. ``said`` may quote the expected value: shown for tests that are not
    hidden. ``malformed``: the program is none.
    """

    outcome: Outcome
    reason: str = ""
    said: str = ""
    malformed: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call of the candidate came to; one of the three is there. ``value`` is wrapped,
    since a value may be ``None``.
    """

    value: tuple[Tree] | None = None
    raised: tuple[Sequence[str], str] | None = None
    failed: Result | None = None


def failure(ended: Ended) -> Result | None:
    """What is wrong with how a program ended, whatever it printed."""
    if ended.how in LATE:
        return Result(Outcome.TIMEOUT, HOW[ended.how])
    if ended.how == "exited" and ended.code == 0:
        return None
    if ended.how == "output":
        return Result(Outcome.WRONG, HOW["output"])
    last = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    how = "was killed" if ended.how == "killed" else f"ended with code {ended.code}"
    malformed = last.startswith(("SyntaxError", "IndentationError", "TabError"))
    return Result(Outcome.WRONG, f"the program {how}", last, malformed)


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way to the candidate: what its process reads from standard input."""

    stdin: bytes
    nonce: str

    def answer(self, ended: Ended) -> Answer:
        """What the process said, as data. Anything but one object with this call's nonce is a
        failure.
        """
        if ended.how in LATE:
            return Answer(failed=Result(Outcome.TIMEOUT, HOW[ended.how]))
        try:
            said = json.loads(ended.stdout)
        except (ValueError, RecursionError):
            said = None
        if type(said) is not dict or said.get("nonce") != self.nonce or ended.how != "exited":
            return Answer(failed=failure(ended) or Result(Outcome.WRONG, "the call gave no result"))
        return _answer(said)


def _answer(said: Mapping[str, Tree]) -> Answer:
    if "value" in said:
        return Answer(value=(said["value"],))
    names = said.get("raised")
    if type(names) is list and all(type(name) is str for name in names):
        return Answer(raised=(names[:20], str(said.get("message", ""))[:500]))
    if said.get("missing"):
        return Answer(failed=Result(Outcome.WRONG, "the program defines no such function"))
    if "malformed" in said:
        why = str(said["malformed"])[:200]
        return Answer(failed=Result(Outcome.WRONG, "it is no program", why, malformed=True))
    why = str(said.get("unspelled", "nothing"))[:100]
    return Answer(failed=Result(Outcome.WRONG, f"the call returned {why}"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that is ready to run. ``sources`` are for Python: the first that compiles is run,
    in the sandbox.
    """

    language: Language
    sources: Sequence[str]
    files: Mapping[str, bytes]

    def program(self, calls: bool) -> Program:
        """What the sandbox starts for every test."""
        language = self.language
        if language.name == "python":
            if calls:
                return Program(("python", "call.py"), guest_files("call"))
            return Program(("python", "main.py"), self.files)
        argv = language.call if calls else language.run
        assert argv is not None
        return Program(command(argv), self.files, language.visible)

    def call(self, name: str, args: Sequence[Tree], kwargs: Mapping[str, Tree]) -> Call:
        """One call of the function ``name``, with a fresh nonce."""
        nonce = secrets.token_hex(16)
        asked = {
            "name": name,
            "args": args,
            "kwargs": kwargs,
            "nonce": nonce,
            "sources": self.sources,
            "solution": SOLUTION,
        }
        return Call(json.dumps(asked).encode(), nonce)


def prepare(sandbox: Sandbox, language: Language, sources: Sequence[str]) -> Candidate | Result:
    """Compiles what has to be compiled, in the sandbox; a failure when it does not.

    Raises:
        SandboxError: no sandbox could be started.
    """
    text = sources[0].encode("utf-8", "replace")
    if language.name == "python":
        return Candidate(language, sources, {"main.py": text})
    files = {language.file: text, **{n: t.encode() for n, t in language.support.items()}}
    if not language.compile:
        return Candidate(language, (), files)
    program = Program(command(language.compile), files, language.compile_visible)
    ended = sandbox.run(program, limits=COMPILING)
    if ended.how != "exited" or ended.code != 0 or not ended.stdout:
        said = ended.stderr.decode("utf-8", "replace")
        why = next((line for line in said.splitlines() if "error" in line), said)[:200]
        if ended.how in LATE:
            return Result(Outcome.TIMEOUT, f"compiling: {HOW[ended.how]}")
        return Result(Outcome.WRONG, "it does not compile", why, malformed=True)
    return Candidate(language, (), {language.binary: ended.stdout})


def command(argv: Sequence[str]) -> tuple[str, ...]:
    """The command with its first word as a path; a word that begins with ``./`` is one of the
    program's files.
    """
    found = None if "/" in argv[0] else shutil.which(argv[0])
    return (found or argv[0], *argv[1:])
