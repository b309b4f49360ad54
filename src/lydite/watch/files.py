"""Writing so that a kill or a full disk leaves either the old file or the new one, and one plain
line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lydite.config import UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Turns "no space left" inside the block into a :class:`UserError` that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UserError(
            f"disk: no space left to write {path}; free some and give the same command again, "
            "the run goes on from its last checkpoint"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Writes ``path`` whole: to a temporary name beside it, fsynced, then renamed over it.

    Raises:
        UserError: the disk is full. The old file, if there was one, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with full_disk_explained(path):
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            fsync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def fsync_directory(path: Path) -> None:
    """Makes renames inside ``path`` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encodable(text: str) -> str:
    """``text`` with lone surrogates, which no file format holds, spelt as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
