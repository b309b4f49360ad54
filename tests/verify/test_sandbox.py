"""What a sandbox does for programs that mean well, in both kinds of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxes import BACKENDS, usable

from lydite.config import UserError
from lydite.verify.sandbox import (
    Ended,
    Program,
    Sandbox,
    SandboxError,
    SandboxLimits,
    backends,
    bubblewrap,
    cgroups,
    landlock,
)
from lydite.verify.sandbox.runtime import Runtime

LIMITS = SandboxLimits(wall_seconds=5, cpu_seconds=5, memory_mb=128, output_kb=64)


@pytest.fixture(scope="module", params=BACKENDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with usable(request.param) as shared:
        yield shared


def python(source: str, **files: bytes) -> Program:
    given = {"main.py": textwrap.dedent(source).encode()}
    return Program(("python", "main.py"), given | {f"{n}.py": c for n, c in files.items()})


def test_a_program_reads_its_input_and_its_output_comes_back(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("print(sum(map(int, input().split())))"), b"3 4 5\n", LIMITS)
    assert (ended.how, ended.code, ended.stdout, ended.stderr) == ("exited", 0, b"12\n", b"")
    assert 0 < ended.seconds < 5


def test_bytes_go_in_and_out_unchanged(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 250
    source = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    assert sandbox.run(python(source), data, LIMITS).stdout == data[::-1]


def test_text_is_utf8_whatever_the_locale(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("print(input()[::-1])"), "añ\u4e2d".encode(), LIMITS)
    assert ended.stdout.decode() == "\u4e2dña\n"


def test_input_larger_than_a_pipe_that_nobody_reads(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("print('done')"), bytes(10**7), LIMITS)
    assert (ended.how, ended.stdout) == ("exited", b"done\n")


@pytest.mark.parametrize(
    ("source", "code", "stdout", "error"),
    [
        ("raise SystemExit", 0, "", ""),
        ("raise SystemExit(7)", 7, "", ""),
        ("import sys; print(1); sys.exit(-1)", 255, "1\n", ""),
        ("import sys; sys.exit('so')", 1, "", "so\n"),
        ("exit(3)", 3, "", ""),
        ("1 / 0", 1, "", "ZeroDivisionError: division by zero\n"),
        ("def f(:", 1, "", "SyntaxError: invalid syntax\n"),
        ("input()", 1, "", "EOFError: EOF when reading a line\n"),
        ("import atexit; atexit.register(print, 'last')", 0, "last\n", ""),
        ("import threading, time\ndef f(): time.sleep(0.1); print('t')\n"
         "threading.Thread(target=f).start()", 0, "t\n", ""),
        ("import io\nout = io.TextIOWrapper(open(1, 'wb', closefd=False))\nout.write('kept')",
         0, "kept", ""),
        ("class A:\n def __del__(self): print('bye')\na = A(); a.me = a", 0, "bye\n", ""),
        ("import sys; sys.stdout.write('x'); sys.stdout.close()", 0, "x", ""),
        ("if __name__ == '__main__': print(__file__)", 0, "main.py\n", ""),
        ("import sys; print(sys.argv)", 0, "['main.py']\n", ""),
        ("import sys; sys.setrecursionlimit(5000)\ndef f(n): return n and 1 + f(n - 1)\n"
         "print(f(4000))", 0, "4000\n", ""),
        ("import threading, sys\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 26)\n"
         "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(50000)))"
         "\nt.start()", 0, "50000\n", ""),
        ("import asyncio; print(asyncio.run(asyncio.sleep(0, 5)))", 0, "5\n", ""),
        ("import asyncio; print(asyncio.run(asyncio.to_thread(abs, -5)))", 0, "5\n", ""),
        ("import json.tool, sqlite3, decimal, encodings.cp1252; print('in')", 0, "in\n", ""),
        ("from concurrent.futures import ThreadPoolExecutor as T\n"
         "print(sum(T(4).map(abs, range(9))))", 0, "36\n", ""),
        ("print(list({'b', 'a', 'c'}) == list({'b', 'a', 'c'}))", 0, "True\n", ""),
    ],
)  # fmt: skip
def test_scripts_end_as_scripts_do(
    sandbox: Sandbox, source: str, code: int, stdout: str, error: str
) -> None:
    ended = sandbox.run(python(source), limits=LIMITS)
    assert (ended.how, ended.code, ended.stdout.decode()) == ("exited", code, stdout), ended
    assert ended.stderr.decode().endswith(error)
    assert (ended.stderr == b"") == (error == "")


def test_what_it_does_is_the_same_each_time(sandbox: Sandbox) -> None:
    source = "import random; print(list({'one', 'two', 'three', 'four'}), random.random())"
    assert len({sandbox.run(python(source), limits=LIMITS).stdout for _ in range(3)}) == 1


def test_a_traceback_shows_the_program_and_nothing_of_ours(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("def f():\n    return 1 / 0\nf()"), limits=LIMITS)
    assert b"sandbox" not in ended.stderr and b"return 1 / 0" in ended.stderr


def test_one_program_on_many_inputs_starts_from_nothing_each_time(sandbox: Sandbox) -> None:
    source = """
        import builtins, sys
        print(input(), getattr(builtins, "seen", None), "decimal" in sys.modules)
        builtins.seen = 1
        import decimal
    """
    with sandbox.runner(python(source), LIMITS) as runner:
        said = [runner.run(str(n).encode()).stdout for n in range(5)]
    assert said == [f"{n} None False\n".encode() for n in range(5)]


def test_a_run_that_is_killed_does_not_harm_the_next(sandbox: Sandbox) -> None:
    source = "import time\nn = input()\nif n == '1': time.sleep(60)\nprint(n)"
    limits = LIMITS.model_copy(update={"wall_seconds": 0.5})
    with sandbox.runner(python(source), limits) as runner:
        ended = [runner.run(str(n).encode()) for n in range(3)]
    assert [e.how for e in ended] == ["exited", "timeout", "exited"]
    assert ended[2].stdout == b"2\n" and 0.5 <= ended[1].seconds < 3


def test_another_program_takes_the_place_of_the_first(sandbox: Sandbox) -> None:
    source = """
        import os
        print(sorted(os.listdir()), [open(n).read() for n in os.listdir() if n != "main.py"])
        try:
            if {meddles}: os.symlink("/etc/passwd", "more"); os.remove("main.py")
        except OSError:
            pass
    """
    said = []
    with sandbox.runner(python(source.format(meddles=False), a=b"1"), LIMITS) as runner:
        for meddles in (False, True, True, False):
            runner.load(python(source.format(meddles=meddles), b=b"%d" % meddles))
            said += [runner.run().stdout, runner.run().stdout]
    expected = [f"['b.py', 'main.py'] ['{int(m)}']\n".encode() for m in (0, 1, 1, 0)]
    assert said == [line for line in expected for _ in range(2)]


def test_other_files_are_there_to_be_read_and_imported(sandbox: Sandbox) -> None:
    program = python("import helper; print(helper.x, open('helper.py').read())", helper=b"x = 4")
    assert sandbox.run(program, limits=LIMITS).stdout == b"4 x = 4\n"


def test_temporary_files_can_be_written_by_bubblewrap() -> None:
    source = """
        import tempfile
        with open("own.txt", "w") as file: file.write("mine")
        with tempfile.TemporaryFile() as file: file.write(b"x")
        print(open("own.txt").read())
    """
    with usable("bubblewrap") as sandbox:
        assert sandbox.run(python(source), limits=LIMITS).stdout == b"mine\n"


def test_a_command_that_is_no_python(sandbox: Sandbox) -> None:
    if shutil.which("sh") is None:
        pytest.skip("no sh")
    shell = os.path.realpath(shutil.which("sh") or "")
    libraries = ("/lib", "/lib64", "/usr/lib") if shell.startswith("/usr") else ()
    program = Program(
        (shell, "run.sh", "argument"),
        {"run.sh": b'read line; echo "$line $1 $(( 6 * 7 ))"; exit 4'},
        visible=(shell, *(path for path in libraries if os.path.exists(path))),
    )
    ended = sandbox.run(program, b"hello\n", LIMITS)
    assert (ended.how, ended.code, ended.stdout) == ("exited", 4, b"hello argument 42\n"), ended
    missing = sandbox.run(Program(("/usr/bin/no-such-command",)), limits=LIMITS)
    assert missing.code == 127 and b"No such file" in missing.stderr


SERVER = """
import os, time
def take(size):
    parts = b""
    while len(parts) < size:
        parts += os.read(3, size - len(parts))
    return parts
def give(nonce, body):
    frame = nonce + body
    frame = len(frame).to_bytes(4, "big") + frame
    while frame:
        frame = frame[os.write(3, frame):]
count = 0
while True:
    size = int.from_bytes(take(4), "big")
    nonce, body = take(16), take(size - 16)
    count += 1
    print("noise", count)
    exec(body)
"""


@pytest.fixture
def serving(sandbox: Sandbox) -> object:
    return lambda: sandbox.start(python(SERVER), LIMITS)


def test_requests_are_answered_one_after_another(sandbox: Sandbox) -> None:
    with sandbox.start(python(SERVER), LIMITS) as session:
        replies = [session.exchange(b"give(nonce, b'%d' % count)") for _ in range(50)]
        large = session.exchange(b"give(nonce, b'x' * len(body))" + b" " * 60000)
    assert replies == [b"%d" % n for n in range(1, 51)]
    assert large == b"x" * 60029


@pytest.mark.parametrize(
    ("request_", "how"),
    [
        (b"give(bytes(16), b'forged')", "killed"),
        (b"give(nonce[::-1], b'forged')", "killed"),
        (b"os.write(3, b'\\0\\0\\0\\x03abc')", "killed"),
        (b"os.write(3, b'\\xff' * 64)", "output"),
        (b"give(nonce, bytes(1 << 17))", "output"),
        (b"os.write(3, b'\\0\\0\\0\\x20abc'); time.sleep(60)", "timeout"),
        (b"time.sleep(60)", "timeout"),
        (b"os.close(3)", "exited"),
        (b"os._exit(0)", "exited"),
        (b"raise SystemExit(0)", "exited"),
        (b"os.abort()", "killed"),
        (b"x = bytearray(1 << 30)", "memory"),
    ],
)
def test_a_reply_that_is_none_ends_the_session(sandbox: Sandbox, request_: bytes, how: str) -> None:
    with sandbox.start(python(SERVER), LIMITS) as session:
        assert session.exchange(b"give(nonce, b'ready')") == b"ready"
        begun = time.monotonic()
        ended = session.exchange(request_, 0.5 if how == "timeout" else 5)
        assert isinstance(ended, Ended) and ended.how == how, ended
        assert time.monotonic() - begun < 4
        assert session.exchange(b"give(nonce, b'again')") is ended


def test_a_session_can_still_import(sandbox: Sandbox) -> None:
    with sandbox.start(python(SERVER), LIMITS) as session:
        assert session.exchange(b"import fractions, wave, xml.dom; give(nonce, b'x')") == b"x"


def test_a_reply_written_ahead_is_not_taken(sandbox: Sandbox) -> None:
    """A program cannot answer a question before it was asked: it lacks the nonce."""
    with sandbox.start(python(SERVER), LIMITS) as session:
        assert session.exchange(b"give(nonce, b'1'); give(nonce, b'2')") == b"1"
        ended = session.exchange(b"give(nonce, b'3')")
    assert isinstance(ended, Ended) and ended.how == "killed"


def test_processor_time_counts_over_all_requests(sandbox: Sandbox) -> None:
    limits = LIMITS.model_copy(update={"cpu_seconds": 1})
    work = b"t = time.process_time() + 0.3\nwhile time.process_time() < t: pass\ngive(nonce, b'')"
    with sandbox.start(python(SERVER), limits) as session:
        replies = [session.exchange(work, 20) for _ in range(5)]
    assert replies[0] == b"" and isinstance(replies[-1], Ended)
    assert replies[-1].how == "cpu"


def test_errors_of_a_session_are_reported(sandbox: Sandbox) -> None:
    with sandbox.start(python("import nothing"), LIMITS) as session:
        ended = session.exchange(b"x")
    assert isinstance(ended, Ended) and ended.code == 1
    assert ended.stderr.endswith(b"No module named 'nothing'\n")


def test_a_closed_session_answers_that_it_was_killed(sandbox: Sandbox) -> None:
    session = sandbox.start(python(SERVER), LIMITS)
    session.close()
    session.close()
    ended = session.exchange(b"give(nonce, b'')")
    assert isinstance(ended, Ended) and ended.how == "killed"


def test_the_channel_is_not_there_for_programs_that_do_not_serve(sandbox: Sandbox) -> None:
    source = "import os\ntry: os.fstat(3); print('there')\nexcept OSError: print('none')"
    assert b"there" not in sandbox.run(python(source), limits=LIMITS).stdout or os.geteuid() == 0
    source = "import os\ntry: os.write(3, b'x'); print('sent')\nexcept OSError: print('none')"
    assert sandbox.run(python(source), limits=LIMITS).stdout == b"none\n"


@pytest.fixture(params=["control groups", "none"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel counts the memory of all processes together."""
    if request.param == "none":
        monkeypatch.setattr(cgroups, "find_place", lambda: None)
    elif cgroups.find_place() is None:
        pytest.skip("this user can make no control groups here")
    return request.param == "control groups"


HOARD = """
    import os, sys, time
    children = []
    for size in map(int, input().split()):
        pid = os.fork()
        if pid == 0:
            try:
                block = b"x" * (size << 20)
                time.sleep(0.3)
                os._exit(0)
            except MemoryError:
                os._exit(9)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(codes.count(0))
"""


def test_many_processes_share_one_memory_limit(counted: bool) -> None:
    limits = LIMITS.model_copy(update={"processes": 8, "memory_mb": 160})
    with usable("bubblewrap") as sandbox:
        together = sandbox.run(python(HOARD), b"60 60 60 60 60 60", limits)
        one = sandbox.run(python(HOARD), b"80", limits)
        after = sandbox.run(python("print('well')"), limits=LIMITS)
    assert together.how == "memory" or int(together.stdout) <= 2, together
    assert one.stdout == (b"1\n" if counted else b"0\n"), one
    assert after.stdout == b"well\n"


def test_control_groups_are_gone_with_their_sandboxes() -> None:
    place = cgroups.find_place()
    if place is None:
        pytest.skip("this user can make no control groups here")
    limits = LIMITS.model_copy(update={"processes": 8})
    mine = f"{cgroups.PREFIX}{os.getpid()}-*"
    with usable("bubblewrap") as sandbox:
        with sandbox.runner(python("print(1)"), limits) as runner:
            assert runner.run().stdout == b"1\n"
            assert list(place.memory.glob(mine)) and list(place.pids.glob(mine))
        assert not list(place.memory.glob(mine)) and not list(place.pids.glob(mine))


def test_a_fork_bomb_stays_within_its_processes() -> None:
    source = """
        import os, time
        made = 0
        for _ in range(200):
            try:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                made += 1
            except OSError:
                break
        print(made, flush=True)
        time.sleep(60)
    """
    limits = LIMITS.model_copy(update={"processes": 8, "memory_mb": 1024, "wall_seconds": 1.0})
    with usable("bubblewrap") as sandbox:
        begun = time.monotonic()
        ended = sandbox.run(python(source), limits=limits)
    assert ended.how == "timeout" and int(ended.stdout) <= 8, ended
    assert time.monotonic() - begun < 4


def test_daemons_of_a_run_do_not_see_the_next() -> None:
    source = """
        import os, sys, time
        mine = [pid for pid in range(2, 400) if pid != os.getpid() and not _gone(pid)]
        print(mine)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 3)
                time.sleep(60)
            os._exit(0)
    """
    helper = "import os\ndef _gone(pid):\n try: os.kill(pid, 0)\n except OSError: return True\n"
    limits = LIMITS.model_copy(update={"processes": 8, "memory_mb": 1024})
    with usable("bubblewrap") as sandbox:
        program = python(helper + textwrap.dedent(source))
        with sandbox.runner(program, limits) as runner:
            assert [runner.run().stdout for _ in range(3)] == [b"[]\n"] * 3


def test_several_processes_need_namespaces() -> None:
    with (
        usable("landlock") as sandbox,
        pytest.raises(UserError, match="processes above 1 need bubblewrap"),
    ):
        sandbox.run(python("print(1)"), limits=LIMITS.model_copy(update={"processes": 2}))


def test_limits_describe_themselves() -> None:
    assert all(field.description for field in SandboxLimits.model_fields.values())
    with pytest.raises(ValueError):
        SandboxLimits(memory_mb=1)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "a\0b"])
def test_files_have_plain_names(name: str) -> None:
    with pytest.raises(AssertionError):
        Program(("python", "main.py"), {name: b""})


def test_a_machine_without_any_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "fault_of", lambda name: f"{name} is not here")
    with pytest.raises(UserError) as caught:
        Sandbox()
    message = str(caught.value)
    assert "bubblewrap is not here" in message and "landlock is not here" in message
    assert "apt-get install bubblewrap" in message and "lydite doctor" in message
    assert "\n" not in message


def test_a_sandbox_that_does_not_close_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial program reports what it could do; believing the installer would not."""
    usable("bubblewrap").close()
    monkeypatch.setattr(
        backends.bubblewrap, "program_filter", lambda **_: bytes.fromhex("060000000000ff7f")
    )
    backends.fault_of.cache_clear()
    try:
        fault = backends.fault_of("bubblewrap")
    finally:
        backends.fault_of.cache_clear()
    assert fault is not None and "starts processes" in fault and "opens" in fault


def test_a_broken_bubblewrap_is_said_in_its_own_words(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path)
    with open(f"{folder}/bwrap", "w") as file:
        file.write("#!/bin/sh\necho 'bwrap: No permissions to create a namespace' >&2\nexit 1\n")
    os.chmod(f"{folder}/bwrap", 0o755)
    monkeypatch.setenv("PATH", folder + os.pathsep + os.environ["PATH"])
    backends.fault_of.cache_clear()
    try:
        fault = backends.fault_of("bubblewrap")
        with pytest.raises(SandboxError, match="No permissions"):
            backends.Starter("bubblewrap").start().ready()
    finally:
        backends.fault_of.cache_clear()
    assert fault is not None and "No permissions to create a namespace" in fault


def test_threads_that_end_do_not_take_their_sandboxes_along(sandbox: Sandbox) -> None:
    """The kernel's parent-death signal follows the thread that started a process."""
    sessions = []
    thread = threading.Thread(target=lambda: sessions.append(sandbox.start(python(SERVER), LIMITS)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with sessions[0] as session:
        assert session.exchange(b"give(nonce, b'here')") == b"here"


def test_the_signal_that_ended_a_program_is_named(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("import ctypes; ctypes.string_at(0)"), limits=LIMITS)
    assert (ended.how, ended.code) == ("killed", -signal.SIGSEGV)


@pytest.mark.parametrize("taken", range(92, 104, 2))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_with_many_open_files(backend: str, taken: int) -> None:
    """The host's numbers for a sandbox's ends are not those that the sandbox uses within."""
    script = b"import os\nsize = int.from_bytes(os.read(3, 4), 'big')\n"
    script += b"os.write(3, size.to_bytes(4, 'big') + os.read(3, size))\n"
    program = Program(("python", "echo.py"), {"echo.py": script})
    with contextlib.ExitStack() as held, usable(backend) as sandbox:
        while held.enter_context(open(os.devnull)).fileno() < taken:
            pass
        with sandbox.start(program, LIMITS) as session:
            assert session.exchange(b"here") == b"here"


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_to_be_seen_may_lie_where_programs_would_work(backend: str) -> None:
    """An environment of Python's below /tmp, say: the programs' own folder must not cover it."""
    script = b"import os, sys\nprint(open(sys.argv[1]).read(), os.listdir())\n"
    script += b"try: open('own', 'w').write('x')\nexcept OSError: pass\n"
    with tempfile.TemporaryDirectory(dir="/tmp") as place, usable(backend) as sandbox:
        os.chmod(place, 0o755)
        seen = Path(place, "seen")
        seen.write_text("there")
        program = Program(("python", "p.py", str(seen)), {"p.py": script}, visible=(place,))
        for _ in range(2):
            ended = sandbox.run(program)
            assert (ended.how, ended.stdout) == ("exited", b"there ['p.py']\n"), ended


def test_packages_that_are_to_be_seen_are_not_hidden() -> None:
    runtime = Runtime("/p/python", "/p/lib", ("/p/lib/site-packages", "/p/lib/test"), ())
    shown = bubblewrap._view(runtime, ("/p/lib/site-packages",))
    assert [shown[n + 1] for n, word in enumerate(shown) if word == "--tmpfs"] == ["/p/lib/test"]
    assert shown.count("--tmpfs") < bubblewrap._view(runtime, ("/q",)).count("--tmpfs")


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_preloaded_is_there_for_every_program(backend: str) -> None:
    preload = "import sys\nsys.modules['given'] = type(sys)('given')\nsys.modules['given'].x = [7]"
    code = b"import given\nprint(given.x)\ngiven.x.append(8)"
    program = Program(("python", "m.py"), {"m.py": code}, preload=preload)
    with usable(backend) as sandbox, sandbox.runner(program) as runner:
        assert [runner.run().stdout for _ in range(2)] == [b"[7]\n"] * 2
        runner.load(program)
        assert runner.run().stdout == b"[7]\n"
    with usable(backend) as sandbox, pytest.raises(SandboxError, match="ZeroDivisionError"):
        sandbox.run(Program(("python", "m.py"), {"m.py": code}, preload="1/0"))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_program_whose_rights_are_not_taken_is_not_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = python(
        """
        import os
        for fd in range(2, 256):
            try:
                os.write(fd, b"the sandbox did not close")
            except OSError:
                pass
        os._exit(127)
        """
    )
    with usable(name) as sandbox:
        for backend in (bubblewrap, landlock):
            monkeypatch.setattr(backend, "program_filter", lambda **_: b"\xff" * 8)
        with pytest.raises(SandboxError, match="did not close around the program: OSError"):
            for _ in range(8):  # some were started before
                sandbox.run(python("print('run')"))
        monkeypatch.undo()
        for _ in range(8):  # no program can say so: that is over when it begins
            with contextlib.suppress(SandboxError):
                ended = sandbox.run(forged)
        assert (ended.how, ended.code) == ("exited", 127)
