"""The system-call filter of a sandboxed program, as the kernel's classic BPF.

Everything that is not listed is refused with an error, so that libraries fall back or fail in
words. What tells harmless from harmful is sometimes an argument; see :func:`_conditions`.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from dataclasses import dataclass

from lydite.verify.sandbox.syscalls import (
    ALWAYS,
    ARCHITECTURES,
    FORKING,
    NUMBERS,
    SIGNALS,
    WRITING,
)

# struct sock_filter: code, jump if true, jump if false, constant.
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_LAST_NUMBER = 1 << 30  # above are calls of the x32 kind, which no filter expects
# Calls this new are probed for: "no such call" makes libraries use the older one.
_NEW = 424

_NEW_NAMESPACES = 0x7E020000 | 0x80
_CLONE_THREAD = 0x10000
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY = 8, 10, 15, 1024, 1026
_TERMINAL_QUERIES = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_NAME_AND_QUERIES = (3, 15, 16, 21, 23, 39, 0x53564D41)
_STREAM_TYPES = tuple(1 | close | block for close in (0, 0x80000) for block in (0, 0x800))
_O_TRUNC = 0x200


@dataclass(frozen=True, slots=True)
class _When:
    """Allow a call by one of its arguments (its low half; ``whole``: both halves).

    ``among``: it has one of these values. ``bits``: it has all... of no ``without`` bits and, if
    given, one of the ``bits``.
    """

    argument: int
    among: tuple[int, ...] = ()
    without: int = 0
    bits: int = 0
    not_among: tuple[int, ...] = ()
    whole: bool = False


def supported() -> bool:
    """Whether this machine's calls are known by number."""
    return platform.machine() in NUMBERS


@functools.cache
def program_filter(
    *, own_files: bool, own_processes: bool, forks: bool, may_truncate: bool = True
) -> bytes:
    """The filter as an array of ``sock_filter``.

    Args:
        own_files: the program has a file system of its own that it may change.
        own_processes: the program sees no process but its own, so its signals hit no other.
        forks: it may start processes, and not only threads.
        may_truncate: something else refuses to truncate foreign files.
    """
    machine = platform.machine()
    numbers = NUMBERS[machine]
    names = ALWAYS | (WRITING if own_files else frozenset())
    names |= SIGNALS if own_processes else frozenset()
    names |= FORKING if forks else frozenset()
    conditions = _conditions(forks, may_truncate)
    code = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_ABOVE, 0, 1, _LAST_NUMBER - 1),
        (_RETURN, 0, 0, _KILL),
    ]
    for name in sorted(names - set(conditions), key=lambda name: numbers.get(name, -1)):
        if name in numbers:
            code += [(_JUMP_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _ALLOW)]
    for name, when in conditions.items():
        if name in numbers:
            body = _test(when)
            code += [(_JUMP_EQUAL, 0, len(body), numbers[name]), *body]
    code += [
        (_JUMP_EQUAL, 1, 0, numbers["clone3"]),
        (_JUMP_ABOVE, 0, 1, _NEW - 1),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _conditions(forks: bool, may_truncate: bool) -> dict[str, _When]:
    """Calls whose arguments decide. Why each: its other uses reach beyond the program."""
    conditions = {
        # No new namespaces; threads only, unless processes may be started.
        "clone": _When(0, without=_NEW_NAMESPACES, bits=0 if forks else _CLONE_THREAD),
        # Descriptors can be made to signal any process of the same user.
        "fcntl": _When(1, not_among=(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY)),
        "ioctl": _When(1, among=_TERMINAL_QUERIES),
        # Not the parent-death signal.
        "prctl": _When(0, among=_NAME_AND_QUERIES),
        # Its own limits only: another process of the same user would be changed.
        "prlimit64": _When(0, among=(0,)),
        "sched_setaffinity": _When(0, among=(0,)),
        # asyncio wakes itself through a stream pair. A datagram pair can send to any name.
        "socketpair": _When(1, among=_STREAM_TYPES),
        "sendto": _When(4, among=(0,), whole=True),
    }
    if not may_truncate:
        conditions["open"] = _When(1, without=_O_TRUNC)
        conditions["openat"] = _When(2, without=_O_TRUNC)
    return conditions


def _test(when: _When) -> list[tuple[int, int, int, int]]:
    """Instructions that return, one way or the other."""
    at = _ARGUMENTS_AT + 8 * when.argument
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    code: list[tuple[int, int, int, int]] = []
    if when.whole:
        code += [(_LOAD, 0, 0, at + 4), (_JUMP_EQUAL, 1, 0, 0), refuse]
    code.append((_LOAD, 0, 0, at))
    for value in when.among:
        code += [(_JUMP_EQUAL, 0, 1, value), allow]
    if when.among:
        return [*code, refuse]
    for value in when.not_among:
        code += [(_JUMP_EQUAL, 0, 1, value), refuse]
    if when.without:
        code += [(_JUMP_ANY_BIT, 0, 1, when.without), refuse]
    if when.bits:
        code += [(_JUMP_ANY_BIT, 1, 0, when.bits), refuse]
    return [*code, allow]
