"""Graders of mathematical answers side by side: what each accepts that it should refuse, and
refuses that it should accept, on the same cases.

    python benchmarks/verifiers.py [--cases FILE.jsonl] [--every N] [--verl FOLDER]

Without ``--cases`` the cases are the pairs that `tests/verify/math_pairs.py` makes by kind: equal
by rewriting, or different by a near miss. A file has `gold`, `completion`, `expected` and perhaps
`contested` on each line, as for `lydite verify`; contested lines are left out. The graders are
Lydite's, Math-Verify with the reference in a box, TRL's `accuracy_reward` as it is and with the
reference in dollars (needs `lydite[parity]`), and two of verl's. verl is read from a folder made by

    pip install --no-deps --target FOLDER verl

Its `math_dapo` reads an `Answer:` line, so it is handed one with the answer that Lydite read. Its
`prime_math` is left out: it calls `eval` on the answer, and imports verl whole.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lydite.types import Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.answer import read_answer

Case = tuple[str, str, bool]
Grader = Callable[[str, str], bool]
TESTS = Path(__file__).resolve().parents[1] / "tests" / "verify"


def main() -> None:
    """Prints the table, and the first misses of Lydite if it has any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cases", type=Path, help="a JSONL file; by default made by kind")
    parser.add_argument("--every", type=int, default=1, help="only every Nth case")
    parser.add_argument("--verl", type=Path, help="where pip put verl with --target")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = (from_file(options.cases) if options.cases else made_by_kind())[:: options.every]
    right = sum(expected for _, _, expected in cases)
    print(f"{len(cases)} cases: {right} to accept, {len(cases) - right} to refuse\n")
    print("| grader | wrongly accepted | wrongly refused | median ms | p99 ms |")
    print("| --- | --- | --- | --- | --- |")
    misses: list[str] = []
    for name, grade in graders(options.verl):
        print(row(name, grade, cases, misses if name == "Lydite" else []), flush=True)
    for miss in misses[:20]:
        print(miss)


def from_file(path: Path) -> list[Case]:
    """The lines that are not contested."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        (str(line["gold"]), line["completion"], line["expected"])
        for line in lines
        if line.get("expected") is not None and not line.get("contested")
    ]


def made_by_kind() -> list[Case]:
    """The pairs of the tests, each once."""
    sys.path.insert(0, str(TESTS))
    pairs = importlib.import_module("math_pairs")
    for module in ("math_pairs_numbers", "math_pairs_forms"):
        importlib.import_module(module)
    return list(dict.fromkeys(pair for kind in pairs.KINDS for pair in pairs.pairs(kind)))


def row(name: str, grade: Grader, cases: list[Case], misses: list[str]) -> str:
    """One grader's line. An exception counts as a refusal, as it would in a run."""
    false_accepts = false_refusals = 0
    seconds = []
    for gold, completion, expected in cases:
        begun = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                accepted = bool(grade(gold, completion))
            except Exception:
                accepted = False
        seconds.append(time.perf_counter() - begun)
        if accepted != expected:
            misses.append(f"{'accepted' if accepted else 'refused'}: {gold!r} {completion!r:.120}")
        false_accepts += accepted and not expected
        false_refusals += expected and not accepted
    seconds.sort()
    median, high = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    return (
        f"| {name} | {false_accepts} | {false_refusals} | {median * 1e3:.2f} | {high * 1e3:.1f} |"
    )


def graders(verl: Path | None) -> list[tuple[str, Grader]]:
    """Those that are installed; one line for each that is not."""
    found: list[tuple[str, Grader]] = [("Lydite", lydite()), ("Math-Verify, gold boxed", boxed())]
    try:
        found += [("TRL accuracy_reward", trl("")), ("TRL accuracy_reward, gold in $", trl("$"))]
    except ImportError:
        print("TRL is not installed: pip install 'lydite[parity]'", file=sys.stderr)
    if verl is None:
        print("verl's graders are left out: give --verl", file=sys.stderr)
        return found
    scores = verl / "verl" / "utils" / "reward_score"
    hendrycks, dapo = (_module(scores / f"{name}.py") for name in ("math_reward", "math_dapo"))
    found.append(("verl math_reward", lambda g, c: hendrycks.compute_score(c, g) > 0))
    found.append(("verl math_dapo", lambda g, c: dapo.compute_score(_answer(c), g)["acc"]))
    return found


def lydite() -> Grader:
    """``verifier: math`` with its defaults."""
    verifier = build(VerifierConfig.model_validate("math"))
    verifier.warm()

    def grade(gold: str, completion: str) -> bool:
        problem = Problem("case", "", (), gold)
        return verifier.verify([problem], [completion])[0].reward == 1.0

    grade("1", r"\boxed{\int x dx}")
    return grade


def boxed() -> Grader:
    """Math-Verify's own defaults."""
    import math_verify

    def grade(gold: str, completion: str) -> bool:
        reference = math_verify.parse(f"\\boxed{{{gold}}}")
        return math_verify.verify(reference, math_verify.parse(completion))

    return grade


def trl(delimiter: str) -> Grader:
    """TRL's reward; a reference that it cannot parse is skipped there, so it pays nothing."""
    from trl.rewards import accuracy_reward

    def grade(gold: str, completion: str) -> bool:
        content = [[{"role": "assistant", "content": completion}]]
        return accuracy_reward(content, [f"{delimiter}{gold}{delimiter}"])[0] == 1.0

    return grade


def _answer(completion: str) -> str:
    return f"Answer: {read_answer(completion).text or ''}"


def _module(path: Path) -> Any:
    """One file of a package that is not imported whole."""
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        sys.exit(f"--verl: no {path}; pip install --no-deps --target FOLDER verl makes it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
