"""Sandboxes come and go: in numbers, from many threads, killed from outside; nothing is left."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxes import BACKENDS, alive, firsts, inhabitants, usable

from lydite.verify.sandbox import Program, Sandbox, SandboxError, SandboxLimits

LIMITS = SandboxLimits(wall_seconds=0.3, cpu_seconds=1, memory_mb=128, file_mb=1, output_kb=64)
ECHO = Program(("python", "main.py"), {"main.py": b"print(input())"})

HOSTILE = [
    "import os; os._exit(0)",
    "import os; os.abort()",
    "x = bytearray(1 << 30)",
    "import os\nwhile True: os.write(1, b'x' * 65536)",
    "import os; os.kill(-1, 9)",
    "import os; os.kill(os.getppid(), 9)",
    "import os\nfor n in range(2000): open(f'f{n}', 'w').write('x' * 100)",
    "import os; os.fork()",
    "import ctypes; ctypes.string_at(0)",
    "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
    "import os; os.closerange(0, 256); os.execv('/bin/sh', ['sh'])",
    "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "import socket; socket.create_connection(('127.0.0.1', 22))",
    "raise SystemExit('no')",
    "import gc\nfor o in gc.get_objects():\n if isinstance(o, dict): o.clear()",
]


@pytest.fixture(autouse=True)
def nothing_is_left() -> object:
    before = _held()
    yield
    _until(lambda: not [p for p in inhabitants() if p.pid not in before[0]])
    _until(lambda: len(os.listdir("/proc/self/fd")) <= before[1])
    assert not list(Path("/tmp").glob(f"lydite-sandbox-{os.getpid()}-*"))


def _held() -> tuple[set[int], int]:
    return {p.pid for p in inhabitants()}, len(os.listdir("/proc/self/fd"))


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def python(source: str) -> Program:
    return Program(("python", "main.py"), {"main.py": source.encode()})


@pytest.mark.parametrize("backend", BACKENDS)
def test_hostile_programs_in_a_row_leave_it_healthy(backend: str) -> None:
    """Each in its own sandbox; ``benchmarks/hostile.py`` runs a thousand."""
    with usable(backend) as sandbox:
        for source in itertools.islice(itertools.cycle(HOSTILE), 30):
            sandbox.run(python(source), limits=LIMITS)
        said = [sandbox.run(ECHO, str(n).encode()).stdout for n in range(5)]
    assert said == [f"{n}\n".encode() for n in range(5)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_hostile_runs_in_one_sandbox_cost_it_nothing(backend: str) -> None:
    with usable(backend) as sandbox:
        tricks = "import sys\nexec(sys.stdin.read())\nprint('well')"
        with sandbox.runner(python(tricks), LIMITS) as runner:
            for source in HOSTILE:
                runner.run(source.encode())
            assert runner.run(b"").stdout == b"well\n"


def test_callers_from_many_threads_get_their_own_output() -> None:
    found: dict[int, list[bytes]] = {}
    with usable("bubblewrap") as sandbox:

        def ask(number: int) -> None:
            found[number] = [sandbox.run(ECHO, f"{number}.{n}".encode()).stdout for n in range(4)]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {t: [f"{t}.{n}\n".encode() for n in range(4)] for t in range(6)}


def test_no_more_run_at_once_than_there_are_slots() -> None:
    with usable("bubblewrap", slots=2) as sandbox:
        first, second = sandbox.runner(ECHO), sandbox.runner(ECHO)
        done = threading.Event()

        def third() -> None:
            sandbox.run(ECHO, b"x")
            done.set()

        thread = threading.Thread(target=third)
        thread.start()
        assert not done.wait(0.3)
        first.close()
        assert done.wait(10)
        thread.join()
        second.close()


def test_closing_ends_what_runs_and_refuses_what_comes() -> None:
    sandbox = usable("bubblewrap")
    session = sandbox.start(python("import time; time.sleep(600)"))
    runner = sandbox.runner(ECHO)
    sandbox.close()
    sandbox.close()
    assert not inhabitants()
    ended = session.exchange(b"x", 5)
    assert not isinstance(ended, bytes) and ended.how == "killed"
    assert runner.run(b"x").how == "killed"
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(ECHO)


@pytest.mark.parametrize("backend", BACKENDS)
def test_killing_the_first_process_ends_all_of_it(backend: str) -> None:
    with usable(backend, slots=1) as sandbox:
        session = sandbox.start(python("import time\nwhile True: time.sleep(1)"))
        _until(lambda: len(inhabitants()) >= 2)
        for process in inhabitants():
            with contextlib.suppress(ProcessLookupError):  # gone with the one before
                os.kill(process.pid, signal.SIGKILL)
        ended = session.exchange(b"x", 5)
        assert not isinstance(ended, bytes) and ended.how == "killed"
        session.close()
        assert sandbox.run(ECHO, b"x").stdout == b"x\n"


def programs_below(first: set[int]) -> list[int]:
    """What runs below the processes that the first ones have for each program."""
    keepers = {p.pid for p in inhabitants() if p.parent in first}
    return [p.pid for p in inhabitants() if p.parent in keepers]


@pytest.mark.parametrize("backend", BACKENDS)
def test_killing_the_program_or_bubblewrap_is_survived(backend: str) -> None:
    with (
        usable(backend, slots=1) as sandbox,
        sandbox.runner(
            python("import time; time.sleep(600)"), LIMITS.model_copy(update={"wall_seconds": 30})
        ) as runner,
    ):
        ended = []
        thread = threading.Thread(target=lambda: ended.append(runner.run()))
        thread.start()
        first = firsts()
        _until(lambda: programs_below(first))
        os.kill(programs_below(first)[0], signal.SIGKILL)
        thread.join(60)
        assert (ended[0].how, ended[0].code) == ("killed", -9)
        wrapper = runner._box.process.pid
        os.kill(wrapper, signal.SIGKILL)
        _until(lambda: not alive(wrapper))
        assert runner.run().how == "killed"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_no_program_outlives_its_host(backend: str, how: str) -> None:
    usable(backend).close()
    script = textwrap.dedent(
        f"""
        import os, sys, time
        from lydite.verify.sandbox import *
        source = b"import os, time; os.read(3, 1); os.write(3, b'x')\\nwhile True: time.sleep(1)"
        sandbox = Sandbox({backend!r}, slots=2)
        session = sandbox.start(Program(("python", "main.py"), {{"main.py": source}}))
        session.exchange(b"hello", 0.3)
        session = sandbox.start(Program(("python", "main.py"), {{"main.py": source}}))
        print(os.getpid(), flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdout is not None and host.stdin is not None
        pid = int(host.stdout.readline())
        _until(lambda: len(inhabitants()) >= 2)
        pids = [process.pid for process in inhabitants()]
        if how == "kill":
            host.send_signal(signal.SIGKILL)
        else:
            host.stdin.close()
    _until(lambda: not any(alive(process) for process in pids))
    _until(lambda: not list(Path("/tmp").glob(f"lydite-sandbox-{pid}-*")))


def test_a_forked_process_has_sandboxes_of_its_own() -> None:
    with usable("bubblewrap") as sandbox:
        assert sandbox.run(ECHO, b"parent").stdout == b"parent\n"
        pid = os.fork()
        if pid == 0:
            try:
                said = sandbox.run(ECHO, b"child").stdout
                sandbox.close()
                os._exit(0 if said == b"child\n" else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sandbox.run(ECHO, b"again").stdout == b"again\n"


def test_a_system_without_a_process_to_spare_is_said_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with usable("bubblewrap") as sandbox:
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "Popen", refuse)
            for _ in range(3):
                with pytest.raises(SandboxError, match="temporarily unavailable"):
                    sandbox.run(ECHO)
        _until(lambda: sandbox.run(ECHO, b"x").stdout == b"x\n" if _starts(sandbox) else False)


def _starts(sandbox: Sandbox) -> bool:
    """Leftover refusals are handed out first."""
    try:
        sandbox.run(ECHO, b"x")
    except SandboxError:
        return False
    return True


def test_as_root_each_sandbox_has_a_user_of_its_own() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can run programs as others")
    source = "import os; print(os.getuid(), os.getgid())"
    for backend in BACKENDS:
        with usable(backend) as sandbox:
            said = [sandbox.run(python(source)).stdout for _ in range(4)]
        assert len(set(said)) == 4
        assert all(int(part) >= 61184 for line in said for part in line.split())


def test_the_stock_is_used_and_refilled() -> None:
    with usable("bubblewrap", slots=2) as sandbox:
        sandbox.warm()
        _until(lambda: len(firsts()) == 2)
        waiting = firsts()
        with sandbox.runner(ECHO) as runner:
            assert runner.run(b"x").stdout == b"x\n"
            _until(lambda: len(firsts()) == 3)
            assert waiting <= firsts()
        _until(lambda: len(firsts()) == 2)


def test_without_root_the_same_holds() -> None:
    """The attacks again, as a user who is nobody, with an interpreter that such a user can read."""
    if os.geteuid() != 0:
        pytest.skip("this run is not root's, so the other tests were")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    paths = os.pathsep.join(
        path for path in sys.path if path.endswith(("site-packages", "src", "tests"))
    )
    interpreter = f"/usr/bin/{version}"
    probe = subprocess.run(
        [interpreter, "-c", "import pydantic_core, pytest, hypothesis"],
        user=61183, group=61183, extra_groups=[], cwd="/",
        env={"PYTHONPATH": paths}, capture_output=True, check=False,
    ) if os.path.exists(interpreter) else None  # fmt: skip
    if probe is None or probe.returncode != 0:
        pytest.skip(f"no {version} here that another user can run with these packages")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        done = subprocess.run(
            [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull,
             "--rootdir", folder, "--basetemp", f"{folder}/t", "-k",
             "socket or reads or writes or signals or refused or rights or threads or files_are",
             str(Path(__file__).with_name("test_sandbox_attacks.py"))],
            user=61183, group=61183, extra_groups=[], cwd=folder,
            env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_closing_while_sandboxes_start_leaves_none(backend: str) -> None:
    for delay in (0.0, 0.002, 0.01, 0.03):
        sandbox = usable(backend)
        sandbox.warm()
        time.sleep(delay)
        sandbox.close()
        assert not inhabitants()
