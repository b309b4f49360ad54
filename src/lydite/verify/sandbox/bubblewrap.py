"""The sandbox by bubblewrap: a view of the system that holds an interpreter and nothing else.

The first process keeps, within its namespaces, the rights to mount and to change its user; each
program that it forks gets its own small file system, gives up these rights and runs as a user who
owns nothing. As root that is another user of the machine (a kernel does not count root's
processes); otherwise a user namespace makes the first process no more than the user.
"""

from __future__ import annotations

import os
import shutil

from lydite.verify.sandbox.runtime import Runtime

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def command(
    runtime: Runtime, visible: tuple[str, ...], sockets: tuple[int, int], info: int
) -> list[str]:
    """The command line of one sandbox.

    Args:
        runtime: the interpreter.
        visible: further paths to show read-only.
        sockets: descriptors of the first process's control and channel.
        info: descriptor on which bubblewrap names the first process.
    """
    root = os.geteuid() == 0
    line = [shutil.which("bwrap") or "bwrap"]
    line += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--hostname", "sandbox", "--info-fd", str(info)]
    line += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    line += ["--cap-add", "CAP_SYS_ADMIN"]
    if root:
        line += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        line += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    shown = [*runtime.libraries, runtime.python, runtime.stdlib, "/etc/ld.so.cache", *visible]
    for path in dict.fromkeys(shown):
        line += ["--ro-bind-try", path, path]
    for path in runtime.hidden:
        line += ["--perms", "0555", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        line += ["--dev-bind", path, path]
    line += ["--dir", "/tmp", "--remount-ro", "/", "--chdir", "/", "--"]
    return line + runtime.command(*sockets)
