"""Hostile programs, one for each way out: none gets out, and none leaves anything behind."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxes import BACKENDS, alive, inhabitants, usable

from lydite.verify.sandbox import Ended, Program, Sandbox, SandboxLimits

SMALL = SandboxLimits(wall_seconds=5, cpu_seconds=2, memory_mb=128, file_mb=2, output_kb=64)


@pytest.fixture(scope="module", params=BACKENDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with usable(request.param) as shared:
        yield shared


@pytest.fixture(autouse=True)
def nothing_is_left(sandbox: Sandbox) -> Iterator[None]:
    """Whatever a program did, its sandbox is gone and the next program runs."""
    threads, folders = set(os.listdir("/dev/shm")), _folders()
    yield
    assert attack(sandbox, "print('well')").stdout == b"well\n"
    deadline = time.monotonic() + 5
    # Besides those that wait for a program, each with its first process only.
    while len(inhabitants()) > 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(inhabitants()) <= 2
    assert set(os.listdir("/dev/shm")) == threads
    assert len(_folders() - folders) <= 2


def _folders() -> set[str]:
    return {path.name for path in Path("/tmp").glob(f"lydite-sandbox-{os.getpid()}-*")}


def attack(sandbox: Sandbox, source: str, *arguments: str, limits: SandboxLimits = SMALL) -> Ended:
    program = Program(
        ("python", "main.py", *arguments), {"main.py": textwrap.dedent(source).encode()}
    )
    return sandbox.run(program, limits=limits)


def attempts(sandbox: Sandbox, *lines: str, needs: str = "") -> list[str]:
    """The lines that a program could run without an error."""
    source = f"""
        import ctypes, os, socket, sys
        libc = ctypes.CDLL(None, use_errno=True)
        def call(number, *arguments):
            if libc.syscall(number, *arguments) < 0:
                raise OSError(ctypes.get_errno(), "refused")
        {needs}
        for line in {list(lines)!r}:
            try:
                exec(line)
            except (OSError, ValueError, MemoryError, RuntimeError):
                continue
            print(line, flush=True)
        print("end")
    """
    ended = attack(sandbox, source)
    said = ended.stdout.decode().splitlines()
    assert said[-1:] == ["end"], ended
    return said[:-1]


def test_it_opens_no_socket(sandbox: Sandbox) -> None:
    assert not attempts(
        sandbox,
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(40, socket.SOCK_STREAM)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
        "socket.socketpair()[0].sendmsg([b'x'])",
        "socket.socketpair()[0].sendto(b'x', '\\0name')",
    )


def test_it_reaches_no_listener_of_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    """Descriptors 0 to 255 tried in every way in which a message could be sent."""
    name = f"\0lydite-{os.getpid()}"
    kinds: list[tuple[int, int, object]] = [
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, name),
        (socket.AF_UNIX, socket.SOCK_DGRAM, name + "d"),
        (socket.AF_UNIX, socket.SOCK_DGRAM, str(tmp_path / "s")),
    ]
    with contextlib.ExitStack() as stack:
        listeners = []
        for family, kind, address in kinds:
            listener = stack.enter_context(socket.socket(family, kind))
            listener.bind(address)  # type: ignore[arg-type]
            if kind == socket.SOCK_STREAM:
                listener.listen()
            listeners.append(listener)
        targets = [listener.getsockname() for listener in listeners]
        source = f"""
            import socket
            for family, kind in ((2, 1), (2, 2), (1, 1), (1, 2)):
                for target in {targets!r}:
                    for make in (lambda: socket.socket(family, kind),
                                 lambda: socket.socketpair(family, kind)[0]):
                        for act in (lambda s: s.connect(target), lambda s: s.sendto(b"x", target)):
                            try:
                                act(make())
                            except (OSError, TypeError, ValueError):
                                continue
            for fd in range(256):
                try:
                    socket.socket(fileno=fd).send(b"x")
                except OSError:
                    continue
        """
        attack(sandbox, source)
        ready, _, _ = select.select(listeners, [], [], 0)
        assert not ready


def test_it_reads_nothing_but_the_interpreter(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("gold")
    os.chmod(tmp_path, 0o755)
    os.symlink("/etc/passwd", tmp_path / "link")
    (tmp_path / "secret").chmod(0o644)
    here = Path(__file__).resolve()
    paths = [
        str(tmp_path / "secret"),
        str(tmp_path / "link"),
        str(here),
        "/etc/passwd",
        "/etc/hosts",
        "/proc/1/environ",
        "/proc/1/cmdline",
        f"/proc/{os.getpid()}/environ",
        "/proc/self/environ",
        "/proc/self/maps",
        "/proc/self/mem",
        "/proc/meminfo",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/tty",
        "/dev/fuse",
        "/dev/shm",
        os.path.join(os.path.expanduser("~"), ".bashrc"),
        str(Path(pytest.__file__).resolve()),
        str(Path(pytest.__file__).parents[1]),
        "/usr/bin/env",
        "../../../../etc/passwd",
        "/tmp/../etc/passwd",
    ]
    reads = [f"os.scandir({p!r}) if os.path.isdir({p!r}) else open({p!r}, 'rb')" for p in paths]
    assert not attempts(sandbox, *reads)


def test_it_sees_no_environment_and_no_secret_of_the_host(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LYDITE_TEST_TOKEN", "xyzzy-token")
    with Sandbox(sandbox.backend, slots=1) as fresh:
        ended = attack(
            fresh,
            """
            import ctypes, gc, glob, os
            environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
            found = [dict(os.environ), environ[0] if environ else None]
            for path in glob.glob("/proc/*/environ"):
                try:
                    found.append(open(path, "rb").read())
                except OSError:
                    pass
            held = repr(gc.get_objects())
            secret = "nekot-yzzyx"[::-1]
            print(found, secret in repr(found), secret in held)
            """,
        )
    assert ended.stdout == b"[{}, None] False False\n", ended


def test_it_writes_nowhere_outside_its_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    stdlib = os.path.dirname(os.__file__)
    places = [str(tmp_path), "/", "/dev", "/dev/shm", "/var/tmp", "/etc", "/root", "/proc", stdlib,
              os.path.join(stdlib, "site-packages"), str(Path(__file__).parent)]  # fmt: skip
    acts = [f"open({place + '/planted'!r}, 'w')" for place in places]
    acts += [f"os.mkdir({place + '/planted'!r})" for place in places]
    acts += [f"os.symlink('/etc', {place + '/planted'!r})" for place in places]
    acts += [f"os.chmod({place!r}, 0o777)" for place in places]
    acts += [f"os.utime({place!r})" for place in places]
    acts += [f"os.remove({os.path.join(stdlib, 'json/__init__.py')!r})"]
    acts += [f"open({os.path.join(stdlib, 'json/__init__.py')!r}, 'r+')"]
    acts += [f"os.truncate({os.path.join(stdlib, 'json/__init__.py')!r}, 0)"]
    acts += [f"os.open({os.path.join(stdlib, 'json/__init__.py')!r}, os.O_RDONLY | os.O_TRUNC)"]
    assert not attempts(sandbox, *acts)
    assert os.listdir(tmp_path) == []


def test_it_leaves_no_sign_on_what_the_machine_shares(sandbox: Sandbox) -> None:
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    before = [os.stat(device).st_mtime_ns for device in devices]
    acts = [f"os.utime({device!r})" for device in devices]
    acts += [f"os.utime(os.open({device!r}, os.O_RDONLY))" for device in devices]
    acts += [f"os.chmod({device!r}, 0o600)" for device in devices]
    library = [os.path.join(os.path.dirname(os.__file__), "json/__init__.py"), "/dev/null"]
    for path in library:
        acts.append(f"__import__('fcntl').flock(os.open({path!r}, os.O_RDONLY), 2 | 4)")
    assert not attempts(sandbox, *acts)
    assert [os.stat(device).st_mtime_ns for device in devices] == before


def test_its_own_files_cannot_be_replaced_for_the_next_run(sandbox: Sandbox) -> None:
    source = b"""
import os, sys
print(sorted(os.listdir()), open("data.txt").read())
for act in (lambda: os.chmod("data.txt", 0o644), lambda: open("data.txt", "w").write("forged"),
            lambda: os.remove("data.txt"), lambda: os.symlink("/etc/passwd", "data.txt"),
            lambda: os.mkdir("a"), lambda: open("a/b", "w").write("kept"),
            lambda: open("state", "w").write("kept")):
    try:
        act()
    except OSError:
        pass
"""
    program = Program(("python", "main.py"), {"main.py": source, "data.txt": b"given"})
    with sandbox.runner(program, SMALL) as runner:
        said = {runner.run().stdout for _ in range(4)}
    assert said == {b"['data.txt', 'main.py'] given\n"}


def test_a_module_of_its_own_stands_in_for_none_of_the_library(sandbox: Sandbox) -> None:
    program = Program(
        ("python", "main.py"),
        {"main.py": b"import json, own; print(own.x, json.dumps([1]))", "json.py": b"1/0",
         "own.py": b"x = 5"},
    )  # fmt: skip
    assert sandbox.run(program, limits=SMALL).stdout == b"5 [1]\n"


def test_it_signals_nobody(sandbox: Sandbox) -> None:
    host = os.getpid()
    ours = [process.pid for process in inhabitants()]
    source = f"""
        import os, signal
        for pid in (1, os.getppid(), {host}, -{host}, *{ours!r}):
            for number in (0, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
                try:
                    os.kill(pid, number)
                except OSError:
                    continue
        print("alive", flush=True)
        os.kill(-1, signal.SIGKILL)
        print("still")
    """
    ended = attack(sandbox, source)
    # Without root it is the same user as the process that watches it, which it may end: its loss.
    assert ended.stdout.startswith(b"alive") or (ended.how == "killed" and os.geteuid() != 0)
    assert ended.how in ("exited", "killed")
    assert alive(host)


def test_descriptors_send_no_signals_either(sandbox: Sandbox) -> None:
    """A descriptor can be told to signal any process of its user when it becomes readable."""
    assert not attempts(
        sandbox,
        f"fcntl.fcntl(0, fcntl.F_SETOWN, {os.getpid()})",
        "fcntl.fcntl(0, 10, 9)",
        f"fcntl.ioctl(0, 0x8901, struct.pack('i', {os.getpid()}))",
        "fcntl.fcntl(0, fcntl.F_SETLEASE, 0)",
        "fcntl.fcntl(0, fcntl.F_NOTIFY, 1)",
        needs="import fcntl, struct",
    )


# What reaches the kernel's inside, other processes, or the whole machine. Numbers of x86_64.
CALLS = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165,
    "umount2": 166, "unshare": 272, "setns": 308, "chroot": 161, "pivot_root": 155, "bpf": 321,
    "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "keyctl": 250,
    "add_key": 248, "request_key": 249, "shmget": 29, "semget": 64, "msgget": 68,
    "mq_open": 240, "memfd_create": 319, "open_by_handle_at": 304, "name_to_handle_at": 303,
    "fanotify_init": 300, "inotify_init1": 294, "init_module": 175, "kexec_load": 246,
    "reboot": 169, "swapon": 167, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "sethostname": 170, "personality": 135, "syslog": 103, "acct": 163, "quotactl": 179,
    "iopl": 172, "ioperm": 173, "modify_ldt": 154, "pidfd_open": 434, "pidfd_getfd": 438,
    "kcmp": 312, "setpriority": 141, "sched_setscheduler": 144, "timer_create": 222,
    "mknod": 133, "mknodat": 259, "seccomp": 317, "landlock_create_ruleset": 444,
    "vmsplice": 278, "tee": 276, "splice": 275, "move_pages": 279, "execveat": 322,
    "clone3": 435, "setxattr": 188, "mbind": 237, "statmount": 457, "no such call": 999,
}  # fmt: skip
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are of x86_64")


@x86_64
def test_system_calls_that_reach_the_kernel_or_others_are_refused(sandbox: Sandbox) -> None:
    ended = attack(
        sandbox,
        f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        for name, number in {CALLS!r}.items():
            result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
            print(name, result, ctypes.get_errno(), sep=":")
        """,
    )
    refused = [f"{name}:-1:{38 if number >= 424 else 1}" for name, number in CALLS.items()]
    assert ended.stdout.decode().splitlines() == refused


@x86_64
@pytest.mark.parametrize("call", [39 | 0x40000000, 0x40000000 | 520])
def test_calls_of_another_kind_end_the_program(sandbox: Sandbox, call: int) -> None:
    """The numbers of the 32-bit kinds mean other calls, which no list of numbers expects."""
    ended = attack(sandbox, f"import ctypes; ctypes.CDLL(None).syscall({call}); print('on')")
    assert (ended.how, ended.code, ended.stdout) == ("killed", -31, b"")


@x86_64
def test_clone_makes_threads_and_nothing_else(sandbox: Sandbox) -> None:
    spaces = [0x10000000, 0x20000000, 0x40000000, 0x20000, 0x02000000, 0x04000000, 0x08000000]
    assert not attempts(
        sandbox, "call(56, 17, 0, 0, 0, 0)", "os.fork()", "os.posix_spawn('/x', ['x'], {})",
        *[f"call(56, {17 | space}, 0, 0, 0, 0)" for space in spaces],
    )  # fmt: skip


def test_it_has_no_rights_and_gains_none(sandbox: Sandbox) -> None:
    ended = attack(
        sandbox,
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        header, rights = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        libc.syscall(125, header, rights)
        print(list(rights), libc.prctl(39, 0, 0, 0, 0), os.getuid() != 0)
        for act in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0)):
            try:
                act()
                print("became root")
            except OSError:
                pass
        """,
    )
    assert ended.stdout.startswith(b"[0, 0, 0, 0, 0, 0] 1 True"), ended
    assert b"root" not in ended.stdout


def test_it_holds_no_descriptor_but_its_streams(sandbox: Sandbox) -> None:
    with tempfile.TemporaryFile() as held:
        os.set_inheritable(held.fileno(), True)
        ended = attack(
            sandbox,
            """
            import os
            for fd in range(1024):
                try:
                    status = os.fstat(fd)
                except OSError:
                    continue
                try:
                    os.read(fd, 1)
                    print(fd, "can be read")
                except OSError:
                    print(fd)
            """,
        )
    said = ended.stdout.decode().splitlines()
    # Landlock as root: path descriptors of the standard library, which cannot be read.
    assert said[:3] == ["0 can be read", "1", "2"]
    assert not [line for line in said[1:] if "read" in line]


def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    names = ("CPU", "AS", "FSIZE", "NPROC", "NOFILE", "CORE", "MEMLOCK")
    assert not attempts(
        sandbox,
        *[f"resource.setrlimit(resource.RLIMIT_{name}, (1 << 40, 1 << 40))" for name in names],
        f"resource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE)",
        f"resource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE, (8, 8))",
        needs="import resource",
    )


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("import time; time.sleep(600)", "timeout"),
        ("import threading, time\nfor _ in range(8): threading.Thread(target=time.sleep, "
         "args=(600,)).start()", "timeout"),
        ("import atexit, time; atexit.register(time.sleep, 600)", "timeout"),
        ("import sys; sys.stdin.read(); import time; time.sleep(600)", "timeout"),
        ("import signal\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n"
         " except (OSError, ValueError): pass\nwhile True: pass", "cpu"),
    ],
)  # fmt: skip
def test_time_is_limited(sandbox: Sandbox, source: str, how: str) -> None:
    limits = SMALL.model_copy(update={"wall_seconds": 0.5 if how == "timeout" else 20.0,
                                      "cpu_seconds": 1})  # fmt: skip
    ended = attack(sandbox, source, limits=limits)
    assert ended.how == how, ended
    assert ended.seconds < 19


@pytest.mark.parametrize(
    "source",
    [
        "x = bytearray(2 ** 30)",
        "x = []\nwhile True: x.append(bytes(2 ** 20))",
        "x = 'a'\nwhile True: x += x",
        "import mmap\nfor m in [mmap.mmap(-1, 2 ** 27) for _ in range(64)]: m.write(b'x' * 2**27)",
        "x = [0] * (1 << 28)",
    ],
)
def test_memory_is_limited(sandbox: Sandbox, source: str) -> None:
    ended = attack(sandbox, source)
    assert ended.how in ("memory", "exited") and ended.code != 0, ended


def test_memory_outside_the_programs_own_is_limited(sandbox: Sandbox) -> None:
    """Files in memory, pipes and sockets hold data that no address space counts."""
    ended = attack(
        sandbox,
        """
        import os, socket
        held = 0
        def fill(fd):
            global held
            os.set_blocking(fd, False)
            try:
                while True:
                    held += os.write(fd, bytes(1 << 16))
            except OSError:
                return
        keep = []
        for make in (lambda: os.memfd_create("x"), lambda: os.pipe()[1],
                     lambda: (lambda p: (keep.append(p), p[0].fileno())[1])(socket.socketpair()),
                     lambda: os.open(f"f{len(keep)}", os.O_CREAT | os.O_RDWR)):
            try:
                for _ in range(100):
                    keep.append(make())
                    fd = keep[-1]
                    if isinstance(fd, int):
                        fill(fd)
            except OSError:
                continue
        print(held >> 20)
        """,
    )
    assert int(ended.stdout) < 32, ended


def test_threads_are_limited(sandbox: Sandbox) -> None:
    ended = attack(
        sandbox,
        """
        import threading, time
        threading.stack_size(32768)
        count = 0
        try:
            for _ in range(4000):
                threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
                count += 1
        except RuntimeError:
            pass
        print(count)
        """,
    )
    most = 100 if os.geteuid() == 0 or sandbox.backend == "bubblewrap" else 1000
    assert 4 <= int(ended.stdout) < most, ended


def test_files_are_limited(sandbox: Sandbox) -> None:
    ended = attack(
        sandbox,
        """
        import os
        written = made = 0
        try:
            with open("large", "wb", buffering=0) as file:
                while True:
                    written += file.write(bytes(1 << 16))
        except OSError:
            pass
        try:
            os.posix_fallocate(os.open("reserved", os.O_CREAT | os.O_WRONLY), 0, 1 << 30)
            print("reserved")
        except OSError:
            pass
        try:
            os.remove("large")
        except OSError:
            pass
        try:
            for number in range(10 ** 6):
                with open(f"f{number}", "wb") as file:
                    made += 1
                    written += file.write(bytes(1 << 16))
        except OSError:
            pass
        try:
            for number in range(10 ** 6):
                os.mkdir(f"d{number}")
                made += 1
        except OSError:
            pass
        print(written <= 2 * 2 << 20, made <= 1024)
        """,
    )
    assert ended.stdout == b"True True\n", ended


@pytest.mark.parametrize(
    "source",
    [
        "while True: print('a' * 1000)",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os, sys\nos.dup2(1, 0)\nwhile True: os.write(0, b'x' * 65536)",
        "print('x' * (64 * 1024 + 1))",
    ],
)
def test_output_is_limited(sandbox: Sandbox, source: str) -> None:
    ended = attack(sandbox, source)
    assert ended.how == "output"
    assert len(ended.stdout) == SMALL.output_kb << 10


def test_errors_are_kept_only_by_their_end(sandbox: Sandbox) -> None:
    ended = attack(
        sandbox, "import sys\nfor n in range(10 ** 5): print(n, file=sys.stderr)\nprint('ok')"
    )
    assert ended.stdout == b"ok\n"
    assert len(ended.stderr) <= 8192 and ended.stderr.endswith(b"99999\n")


def test_output_at_the_limit_is_whole(sandbox: Sandbox) -> None:
    ended = attack(sandbox, "print('x' * (64 * 1024 - 1))")
    assert (ended.how, len(ended.stdout)) == ("exited", 64 * 1024)


def test_the_clock_of_the_host_counts(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    ended = attack(
        sandbox,
        """
        import time
        for name in ("time", "monotonic", "perf_counter", "process_time", "sleep"):
            setattr(time, name, lambda *a: 0.0)
        import ctypes; ctypes.CDLL(None).usleep(300000)
        """,
    )
    assert 0.3 <= ended.seconds <= time.monotonic() - begun


@pytest.mark.parametrize(
    "source",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(n): return f(n + 1)\nf(0)",
        "import os; [os.close(fd) for fd in range(3)]",
        "import os; os.closerange(0, 1 << 16); raise SystemExit",
        "import signal, os; signal.raise_signal(signal.SIGKILL)",
        "import signal, os; signal.raise_signal(signal.SIGSTOP)",
        "import builtins; builtins.__dict__.clear()",
        "import sys; sys.modules.clear()",
        "import gc\nfor o in gc.get_objects():\n"
        " if isinstance(o, dict): o.clear()",
        "import sys; sys.settrace(lambda *a: 1 / 0)\ndef f(): pass\nf()",
        "import threading; threading._shutdown = None",
        "import faulthandler; faulthandler._sigsegv()",
        "exec((lambda: 0).__code__.replace(co_code=b'\\xff' * 8))",
        "import sys\nfor n in range(2, 5):\n f = sys._getframe(0)\n"
        " while f: f.f_locals.clear(); f.f_globals.clear(); f = f.f_back",
    ],
)  # fmt: skip
def test_ends_of_all_kinds_are_reported(sandbox: Sandbox, source: str) -> None:
    limits = SMALL.model_copy(update={"wall_seconds": 1.0})
    ended = attack(sandbox, source, limits=limits)
    assert ended.how in ("exited", "killed", "timeout", "cpu", "memory")
    assert ended.stdout == b""


def test_a_program_that_finds_the_first_process_gains_nothing(sandbox: Sandbox) -> None:
    """It is a copy of it: whatever was in its memory is there to be read."""
    ended = attack(
        sandbox,
        """
        import gc, os, sys
        frame = sys._getframe()
        names = []
        while frame:
            names.append(frame.f_code.co_name)
            run = frame.f_locals.get("self")
            frame = frame.f_back
            if run is not None and hasattr(run, "control"):
                for fd in (run.control, run.channel, run.stdin, run.stdout, run.stderr):
                    try:
                        os.write(fd, b"\\0" * 64)
                        if fd > 2:
                            print("wrote to", fd)
                    except OSError:
                        pass
        print("settled", "serve" in names)
        """,
    )
    assert b"wrote" not in ended.stdout and ended.stdout.endswith(b"settled True\n"), ended
