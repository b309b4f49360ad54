"""The forty kinds of attack on code graders, as programs: none is paid, none does harm.

What a program should return is a secret that nothing in the sandbox holds and nothing can guess.
The host puts it where graders have leaked it: in the environment, in files, on a local server.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lydite.types import Outcome, Problem, Verdict
from lydite.verify import ComposedVerifier, VerifierConfig, build

FOLDER = Path(__file__).with_name("attacks")
HEAD = re.compile(r"# attack (?P<number>\d+): (?P<title>[^;]+); (?P<kinds>[^;]+); (?P<outcome>.+)")
SECRET = f"sesame-{secrets.token_hex(16)}"
CANARIES = [
    Path(folder, name)
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/", ".")
    for name in ("lydite-canary", "lydite-canary-big", "lydite-canary-0", "reward.json")
]


@dataclass(frozen=True)
class Attack:
    number: int
    title: str
    kinds: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    code: str


def read_attack(path: Path) -> Attack:
    text = path.read_text(encoding="utf-8")
    head = HEAD.search(text)
    assert head is not None, path
    outcomes = tuple(Outcome(word.strip()) for word in head["outcome"].split(","))
    kinds = tuple(kind.strip() for kind in head["kinds"].split(","))
    return Attack(int(head["number"]), head["title"], kinds, outcomes, text)


ATTACKS = {path.stem: read_attack(path) for path in sorted(FOLDER.glob("a*.py"))}
EACH = [(name, kind) for name, attack in ATTACKS.items() for kind in attack.kinds]


class Server:
    """Gives the secret to whoever can connect; counts them."""

    def __init__(self) -> None:
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.tcp.getsockname()[1]
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", self.port))
        self.local = socket.socket(socket.AF_UNIX)
        self.local.bind(f"\0lydite-test-{self.port}")
        self.local.listen()
        self.visitors = 0
        for serve in (self._tcp, self._udp, self._local):
            threading.Thread(target=serve, daemon=True).start()

    def _tcp(self) -> None:
        self._accept(self.tcp)

    def _local(self) -> None:
        self._accept(self.local)

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = server.accept()
                self.visitors += 1
                visitor.sendall(SECRET.encode())
                visitor.close()

    def _udp(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                _, address = self.udp.recvfrom(100)
                if address is None:  # shut down
                    return
                self.visitors += 1
                self.udp.sendto(SECRET.encode(), address)

    def close(self) -> None:
        for server in (self.tcp, self.udp, self.local):
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture(scope="module")
def bait(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files and an environment with the secret, readable by all."""
    folder = tmp_path_factory.mktemp("bait")
    for name in ("tests.json", "solution.py", "expected.txt"):
        (folder / name).write_text(f'expected = "{SECRET}"\n')
    loose = Path("/tmp") / f"lydite-bait-{os.getpid()}.py"
    loose.write_text(f'expected = "{SECRET}"\n')
    os.environ["LYDITE_EXPECTED"] = SECRET
    yield loose
    del os.environ["LYDITE_EXPECTED"]
    loose.unlink()


@pytest.fixture(scope="module")
def left(bait: Path) -> Iterator[None]:
    """Nothing stays of a verifier that is closed."""
    open_before, before = len(os.listdir("/proc/self/fd")), descendants()
    yield
    assert {pid: line for pid, line in descendants().items() if pid not in before} == {}
    assert len(os.listdir("/proc/self/fd")) <= open_before


def limited(seconds: float) -> ComposedVerifier:
    each = {"wall_seconds": seconds, "cpu_seconds": 20, "memory_mb": 128, "output_kb": 64}
    return build(VerifierConfig.model_validate({"kind": "code", "per_test": each}))


@pytest.fixture(scope="module")
def verifier(left: None) -> Iterator[ComposedVerifier]:
    """Waits long enough for any program that ends, however busy the machine is."""
    built = limited(20.0)
    built.warm()
    yield built
    built.close()


@pytest.fixture(scope="module")
def hasty(left: None) -> Iterator[ComposedVerifier]:
    """For programs that may not end."""
    built = limited(0.3)
    yield built
    built.close()


def descendants() -> dict[int, str]:
    """The command lines of all processes below this one that have not ended, by number."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    below = [os.getpid()]
    for pid in below:
        below += [child for child, parent in parents.items() if parent == pid]
    return {pid: commands[pid] for pid in below[1:]}


def problem(kind: str, port: int) -> Problem:
    fields: dict[str, object] = {
        "calls": {"entry_point": "f", "cases": [{"args": [port], "expected": SECRET}]},
        "stdio": {"tests": [{"input": f"{port}\n", "output": SECRET}]},
        "test_code": {
            "entry_point": "f",
            "test_code": "def check(candidate):\n"
            f"    assert all(map(lambda x: candidate(x) == {SECRET!r}, [{port}]))\n",
        },
    }[kind]
    gold = f'def f(x):\n    return "{SECRET}"\n'
    return Problem(kind, "", (), reference=gold if kind != "stdio" else None, fields=fields)


def completion(attack: Attack, kind: str) -> str:
    start = "\nprint(f(int(input())))\n" if kind == "stdio" else ""
    return f"Here it is.\n```python\n{attack.code}{start}```\n"


def refused(verdict: Verdict, outcomes: tuple[Outcome, ...]) -> bool:
    return verdict.outcome in outcomes and verdict.reward == 0.0


def check_unharmed(server: Server, bait: Path) -> None:
    assert server.visitors == 0
    assert not [path for path in CANARIES if path.exists()]
    assert SECRET in bait.read_text()


@pytest.mark.parametrize(("name", "kind"), EACH, ids=[f"{n}-{k}" for n, k in EACH])
def test_an_attack_is_refused(
    name: str,
    kind: str,
    verifier: ComposedVerifier,
    hasty: ComposedVerifier,
    server: Server,
    bait: Path,
) -> None:
    attack = ATTACKS[name]
    judge = hasty if Outcome.TIMEOUT in attack.outcomes else verifier
    (verdict,) = judge.verify([problem(kind, server.port)], [completion(attack, kind)])
    assert refused(verdict, attack.outcomes), verdict
    assert SECRET not in verdict.detail or kind != "test_code"
    check_unharmed(server, bait)


def test_a_program_that_knows_the_secret_passes(verifier: ComposedVerifier, server: Server) -> None:
    """Without this, a grader that refuses everything would do as well."""
    for kind in ("calls", "stdio", "test_code"):
        code = f"```python\ndef f(x):\n    return {SECRET!r}\n"
        code += "print(f(int(input())))\n```" if kind == "stdio" else "```"
        (verdict,) = verifier.verify([problem(kind, server.port)], [code])
        assert (verdict.outcome, verdict.reward) == (Outcome.CORRECT, 1.0), verdict


def test_forty_kinds_are_covered() -> None:
    """Those that are no program against one secret have tests of their own, below."""
    here = {20: "visible", 21: "state", 22: "mutation", 36: "truncated", 37: "no tests"}
    assert {attack.number for attack in ATTACKS.values()} | set(here) == set(range(1, 41))


def grade(verifier: ComposedVerifier, code: str, **fields: object) -> Verdict:
    (verdict,) = verifier.verify([Problem("p", "", (), fields=fields)], [f"```python\n{code}\n```"])
    return verdict


def test_20_special_casing_the_shown_tests(verifier: ComposedVerifier) -> None:
    cases = [{"args": [n], "expected": n * n, "hidden": n > 2} for n in range(1, 6)]
    code = "def f(x):\n    return {1: 1, 2: 4}.get(x, 0)"
    assert grade(verifier, code, entry_point="f", cases=cases).reward == 0.0
    config = {"kind": "code", "reward": "share", "counted": "hidden"}
    hidden = build(VerifierConfig.model_validate(config))
    try:
        verdict = grade(hidden, code, entry_point="f", cases=cases)
        assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.0)
        assert "9" not in verdict.detail and "hidden" in verdict.detail
    finally:
        hidden.close()


STATE = """
import os, pathlib
n = 0
def f(x):
    global n
    n += 1
    place = pathlib.Path("/tmp/count")
    try:
        n = max(n, int(place.read_text()) + 1)
    except OSError:
        pass
    try:
        place.write_text(str(n))
    except OSError:
        pass
    return {answers}[n - 1]
"""


@pytest.mark.parametrize("kind", ["calls", "test_code"])
def test_21_state_across_cases(verifier: ComposedVerifier, kind: str) -> None:
    """A program that knows the answers in order, and counts where it is."""
    numbers = [3, 5, 7]
    code = STATE.format(answers=[n * n for n in numbers])
    cases = [{"args": [n], "expected": n * n} for n in numbers]
    tests = f"assert [candidate(n) for n in {numbers}] == {[n * n for n in numbers]}"
    fields: dict[str, object] = {"cases": cases} if kind == "calls" else {"test_code": tests}
    assert refused(grade(verifier, code, entry_point="f", **fields), (Outcome.WRONG,))


LEAVE = """
import os, socket, threading
for folder in (".", "/tmp", "/dev/shm", "/var/tmp", "/"):
    for name in ("left", "main.py", "call.py", "sitecustomize.py"):
        try:
            os.chmod(os.path.join(folder, name), 0o666)
        except OSError:
            pass
        try:
            open(os.path.join(folder, name), "w").write("print('left')")
        except OSError:
            pass
try:
    socket.socket(socket.AF_UNIX).bind("\\0left")
except OSError:
    pass
import builtins
builtins.left = True
print(input())
"""
FIND = """
import builtins, os
seen = [f for f in (".", "/tmp", "/dev/shm", "/var/tmp", "/") if os.path.isfile(f + "/left")]
print(input() if not seen and not hasattr(builtins, "left") else "left")
"""


def test_21_state_across_completions(bait: Path) -> None:
    """A sandbox is used again; what a program leaves in it is not there for the next."""
    single = build(VerifierConfig.model_validate({"rewards": ["code"], "limits": {"workers": 1}}))
    try:
        tests = [{"input": "1", "output": "1"}, {"input": "2", "output": "2"}]
        problems = [Problem("p", "", (), fields={"tests": tests})] * 6
        texts = [f"```python\n{code}\n```" for code in (LEAVE, FIND) * 3]
        assert [verdict.reward for verdict in single.verify(problems, texts)] == [1.0] * 6
    finally:
        single.close()


@pytest.mark.parametrize("kind", ["calls", "stdio", "test_code"])
def test_a_program_cannot_read_the_one_before(bait: Path, kind: str) -> None:
    """Not its code and not its output: another sample of the same problem may have been right."""
    single = build(VerifierConfig.model_validate({"rewards": ["code"], "limits": {"workers": 1}}))
    start = "\nprint(f(int(input())))" if kind == "stdio" else ""
    good = f"```python\ndef f(x):\n    return {SECRET!r}{start}\n```"
    hunters = [name for name, a in ATTACKS.items() if "sesame-[" in a.code and kind in a.kinds]
    assert len(hunters) >= 7
    texts = [text for name in hunters for text in (good, completion(ATTACKS[name], kind))]
    try:
        verdicts = single.verify([problem(kind, 1)] * len(texts), texts)
        assert [verdict.reward for verdict in verdicts] == [1.0, 0.0] * len(hunters)
    finally:
        single.close()


def test_22_input_mutation_and_aliasing(verifier: ComposedVerifier) -> None:
    """Tests that compare with their own input see it as they made it."""
    code = "def f(xs):\n    xs.clear()\n    return xs"
    tests = """
def check(candidate):
    for xs in ([3, 1, 2], [2, 1]):
        assert candidate(xs) == sorted(xs)
"""
    assert refused(grade(verifier, code, entry_point="f", test_code=tests), (Outcome.WRONG,))
    cases = [{"args": [[3, 1, 2]], "expected": [1, 2, 3]}]
    assert refused(grade(verifier, code, entry_point="f", cases=cases), (Outcome.WRONG,))


@pytest.mark.parametrize("printed", ["1", "1\\n2", "1\\n2\\n3\\n4", "", "1\\n\\n2\\n3", "1 2 3"])
def test_36_truncated_output(verifier: ComposedVerifier, printed: str) -> None:
    tests = [{"input": "", "output": "1\n2\n3\n"}]
    assert refused(grade(verifier, f'print("{printed}")', tests=tests), (Outcome.WRONG,))


@pytest.mark.parametrize(
    "fields",
    [
        {"tests": []},
        {"tests": "[]"},
        {"tests": [{"input": "1", "output": "\n"}]},
        {"entry_point": "f", "cases": []},
        {"entry_point": "f", "cases": [{"args": [1], "expected": None}]},
        {"entry_point": "f", "test_code": "def check(candidate):\n    candidate(1)\n"},
        {"entry_point": "f", "test_code": "x = 1\nassert x == 1\n"},
        {"entry_point": "f", "test_code": ""},
        {},
    ],
)
def test_37_without_tests_nothing_passes(
    verifier: ComposedVerifier, fields: dict[str, object]
) -> None:
    verdict = grade(verifier, "def f(x):\n    return None", **fields)
    assert (verdict.outcome, verdict.reward) == (Outcome.UNGRADABLE, None)


def test_40_a_reward_is_a_finite_number(verifier: ComposedVerifier) -> None:
    cases = [{"args": [], "expected": 1.5}]
    for value in ("nan", "inf", "-inf", "1e308 * 10"):
        verdict = grade(verifier, f'def f():\n    return float("{value}"[:4])', entry_point="f",
                        cases=cases)  # fmt: skip
        assert verdict.reward == 0.0 and math.isfinite(verdict.reward)


def test_a_hundred_hostile_programs_in_a_row_leave_the_pool_healthy(
    verifier: ComposedVerifier, server: Server, bait: Path
) -> None:
    """Side by side with a good one every tenth place, which must not suffer from its neighbours."""
    quick = [name for name, a in ATTACKS.items() if a.outcomes == (Outcome.WRONG,)]
    texts = [completion(ATTACKS[quick[n % len(quick)]], "calls") for n in range(90)]
    for place in range(0, 100, 10):
        texts.insert(place, f"```python\ndef f(x):\n    return {SECRET!r}\n```")
    verdicts = verifier.verify([problem("calls", server.port)] * len(texts), texts)
    assert [n for n, v in enumerate(verdicts) if v.reward == 1.0] == list(range(0, 100, 10))
    assert {v.outcome for v in verdicts} == {Outcome.CORRECT, Outcome.WRONG}
    check_unharmed(server, bait)
