"""Where programs work: the same at the start of each run.

Runs inside, like :mod:`lydite.verify.sandbox.inside`, with the standard library alone.
"""

from __future__ import annotations

import os

from lydite.verify.sandbox.settle import check, libc

INODES = 1024
MS_NOSUID, MS_NODEV, MNT_DETACH = 2, 4, 2


class Folder:
    """The working folder of programs: the same at the start of each run.

    It is a small file system in memory (``own``), or a folder of the host's in which only this
    process may write.
    """

    def __init__(self, path: str, own: bool) -> None:
        self.own = own
        self.path = path
        self.files: dict[str, bytes] = {}
        self.size = -1
        self.inodes = -1
        self.placed = False

    def prepare(self, command: str, size: int) -> None:
        """Puts the files there unless they are there, untouched and alone."""
        os.chdir("/")
        if not self.placed or self.size != size or not self.untouched():
            if self.own:
                self.mount(size)
            self.fill(command)
            self.placed, self.size = True, size
            self.inodes = os.statvfs(self.path).f_ffree
        os.chdir(self.path)

    def mount(self, size: int) -> None:
        if self.size >= 0:
            check(libc.umount2(self.path.encode(), MNT_DETACH), "umount")
        options = f"size={size},nr_inodes={INODES},mode=1777".encode()
        place, flags = self.path.encode(), MS_NOSUID | MS_NODEV
        check(libc.mount(b"tmpfs", place, b"tmpfs", flags, options), "mount")

    def leave(self) -> None:
        """Makes room for the next program's."""
        os.chdir("/")
        if self.own and self.size >= 0:
            check(libc.umount2(self.path.encode(), MNT_DETACH), "umount")
        elif not self.own:
            for name in os.listdir(self.path):
                os.unlink(os.path.join(self.path, name))

    def fill(self, command: str) -> None:
        for name, content in self.files.items():
            path = os.path.join(self.path, name)
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, 0o555 if command in (name, f"./{name}") else 0o444)

    def untouched(self) -> bool:
        if not self.own:
            return True
        if sorted(os.listdir(self.path)) != sorted(self.files):
            return False
        if os.statvfs(self.path).f_ffree != self.inodes:
            return False
        try:
            return all(self.holds(name, content) for name, content in self.files.items())
        except OSError:  # a link or a folder stands in a file's place
            return False

    def holds(self, name: str, content: bytes) -> bool:
        fd = os.open(os.path.join(self.path, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            return file.read(len(content) + 1) == content
