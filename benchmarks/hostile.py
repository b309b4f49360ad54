"""A thousand hostile programs in a row, good ones among them: who is paid, and what is left.

    python benchmarks/hostile.py --programs 1000

The programs are those of tests/verify/attacks, in turn and in every form that they have (a function
call, a whole program, test code); every tenth is a good one. What they should return is a secret
that nothing in the sandbox holds. Prints the outcomes, the time, and what was paid wrongly or left
behind: processes, descriptors, files. Ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import time
from collections import Counter
from pathlib import Path

from lydite.types import Problem, Verdict
from lydite.verify import ComposedVerifier, VerifierConfig, build

ATTACKS = Path(__file__).parents[1] / "tests" / "verify" / "attacks"
SECRET = f"sesame-{secrets.token_hex(16)}"
CALL = {"entry_point": "f", "cases": [{"args": [1], "expected": SECRET}]}
STDIO = {"tests": [{"input": "1\n", "output": SECRET}]}
CODE = {"entry_point": "f", "test_code": f"def check(f):\n    assert f(1) == {SECRET!r}\n"}
FORMS: dict[str, dict[str, object]] = {"calls": CALL, "stdio": STDIO, "test_code": CODE}
START = "\nprint(f(int(input())))\n"


def main() -> int:
    """Runs the programs; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=0.5, help="wall limit of one test")
    given = parser.parse_args()
    os.environ["LYDITE_EXPECTED"] = SECRET
    before = len(os.listdir("/proc/self/fd"))
    each = {"wall_seconds": given.seconds, "cpu_seconds": 2, "memory_mb": 128, "output_kb": 64}
    verifier = build(
        VerifierConfig.model_validate(
            {
                "rewards": [{"kind": "code", "per_test": each}],
                "limits": {"workers": given.workers},
            }
        )
    )
    verifier.warm()
    begun = time.perf_counter()
    verdicts, good = run(verifier, given.programs)
    seconds = time.perf_counter() - begun
    verifier.close()
    outcomes = Counter(verdict.outcome.value for verdict in verdicts)
    paid = [place for place, verdict in enumerate(verdicts) if verdict.reward != 0.0]
    left = [
        *children(),
        *(
            str(path)
            for folder in ("/tmp", "/var/tmp", "/")
            for path in Path(folder).glob("lydite-c*")
        ),
    ]
    more = len(os.listdir("/proc/self/fd")) - before
    print(f"{given.programs} programs, {given.workers} workers, {seconds:.1f} s")
    print("outcomes: " + ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items())))
    print(f"good programs paid: {len(good & set(paid))} of {len(good)}")
    print(f"hostile programs paid: {len(set(paid) - good)} of {given.programs - len(good)}")
    print(f"left behind: {', '.join(left) or 'nothing'}; descriptors: {more:+d}")
    return int(bool(set(paid) ^ good) or bool(left) or more > 0)


def run(verifier: ComposedVerifier, count: int) -> tuple[list[Verdict], set[int]]:
    """The verdicts, and at which places a good program stood."""
    hostile = list(forms())
    problems, texts = [], []
    good = set(range(0, count, 10))
    for place in range(count):
        form, code = hostile[place % len(hostile)]
        if place in good:
            code = f"def f(x):\n    return {SECRET!r}\n" + (START if form == "stdio" else "")
        problems.append(Problem(str(place), "", (), fields=FORMS[form]))
        texts.append(f"```python\n{code}\n```")
    return verifier.verify(problems, texts), good


def forms() -> list[tuple[str, str]]:
    """Every attack in every form that it names in its third line."""
    found = []
    for path in sorted(ATTACKS.glob("a*.py")):
        code = path.read_text(encoding="utf-8")
        head = re.search(r"# attack \d+: [^;]+; ([^;]+);", code)
        assert head is not None, path
        for form in head[1].split(", "):
            found.append((form, code + (START if form == "stdio" else "")))
    return found


def children() -> list[str]:
    """Processes below this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(f"process {folder.name}")
    return found


if __name__ == "__main__":
    sys.exit(main())
