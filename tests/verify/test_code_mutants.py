"""Problems in the HumanEval style: canonical solutions pass, mutants of other behaviour fail."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lydite.types import Outcome, Problem
from lydite.verify import ComposedVerifier, VerifierConfig, build


@dataclass(frozen=True)
class Exercise:
    """``head`` is the prompt, ``body`` its canonical continuation, ``answers`` what is right."""

    head: str
    body: str
    answers: dict[str, str]

    @property
    def name(self) -> str:
        return self.head.rpartition("def ")[2].partition("(")[0]

    @property
    def tests(self) -> str:
        lines = [f"    assert candidate({args}) == {value}" for args, value in self.answers.items()]
        return "\n".join(["def check(candidate):", *lines, ""])


EXERCISES = [
    Exercise(
        'def running_max(xs):\n    """The largest item so far, at each place."""\n',
        "    out = []\n    for x in xs:\n"
        "        out.append(x if not out or x > out[-1] else out[-1])\n    return out\n",
        {"[]": "[]", "[3, 1, 4, 4, 2, 5]": "[3, 3, 4, 4, 4, 5]", "[-2, -5, -1]": "[-2, -2, -1]"},
    ),
    Exercise(
        'def collatz_steps(n):\n    """Steps of n -> n/2 or 3n+1 until 1, at most 200."""\n',
        "    for step in range(200):\n        if n == 1:\n            return step\n"
        "        n = n // 2 if n % 2 == 0 else 3 * n + 1\n    return -1\n",
        {"1": "0", "2": "1", "6": "8", "27": "111", "97": "118", "0": "-1"},
    ),
    Exercise(
        "from typing import List\n\ndef overlap(a: List[int], b: List[int]) -> int:\n"
        '    """Length of what two closed intervals share."""\n',
        "    low = max(a[0], b[0])\n    high = min(a[1], b[1])\n"
        "    return high - low if high > low else 0\n",
        {
            "[1, 5], [3, 9]": "2",
            "[1, 2], [3, 4]": "0",
            "[0, 9], [2, 5]": "3",
            "[1, 4], [4, 6]": "0",
            "[-3, 2], [-5, 0]": "3",
        },
    ),
    Exercise(
        'def rotate(text, by):\n    """Moves letters a-z by so many places, others not."""\n',
        "    out = ''\n    for c in text:\n        if 'a' <= c <= 'z':\n"
        "            c = chr((ord(c) - 97 + by) % 26 + 97)\n        out += c\n    return out\n",
        {
            "'abc', 1": "'bcd'",
            "'xyz!', 3": "'abc!'",
            "'Hi you', 0": "'Hi you'",
            "'az', -1": "'zy'",
            "'', 5": "''",
            "'{`', 2": "'{`'",
        },
    ),
    Exercise(
        'def is_leap(year):\n    """Whether a year of the Gregorian calendar has 366 days."""\n',
        "    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
        {
            "2024": "True",
            "2023": "False",
            "1900": "False",
            "2000": "True",
            "2100": "False",
            "2004": "True",
            "2001": "False",
            "1200": "True",
            "4": "True",
        },
    ),
    Exercise(
        'def digits(n, base):\n    """Digits of n >= 0 in a base, the highest first."""\n',
        "    out = []\n    for _ in range(64):\n        out.insert(0, n % base)\n"
        "        n //= base\n        if n == 0:\n            break\n    return out\n",
        {"0, 2": "[0]", "5, 2": "[1, 0, 1]", "255, 16": "[15, 15]", "100, 10": "[1, 0, 0]"},
    ),
    Exercise(
        'def transpose(rows):\n    """Columns of a table as rows."""\n',
        "    if not rows:\n        return []\n"
        "    return [[row[k] for row in rows] for k in range(len(rows[0]))]\n",
        {
            "[]": "[]",
            "[[1, 2], [3, 4]]": "[[1, 3], [2, 4]]",
            "[[1], [2]]": "[[1, 2]]",
            "[[1, 2, 3]]": "[[1], [2], [3]]",
        },
    ),
    Exercise(
        'def word_counts(text):\n    """How often each word occurs, in lower case."""\n',
        "    counts = {}\n    for word in text.lower().split():\n"
        "        counts[word] = counts.get(word, 0) + 1\n    return counts\n",
        {"''": "{}", "'a b a'": "{'a': 2, 'b': 1}", "'The the  THE end'": "{'the': 3, 'end': 1}"},
    ),
    Exercise(
        'def balanced(text):\n    """Whether round brackets are closed in order."""\n',
        "    depth = 0\n    for c in text:\n        if c == '(':\n            depth += 1\n"
        "        elif c == ')':\n            depth -= 1\n            if depth < 0:\n"
        "                return False\n    return depth == 0\n",
        {
            "''": "True",
            "'(())()'": "True",
            "'(()'": "False",
            "')('": "False",
            "'a(b)c'": "True",
            "'())('": "False",
            "'x'": "True",
            "'(((()))'": "False",
            "'(()))(()'": "False",
        },
    ),
    Exercise(
        'def fib(n):\n    """The n-th Fibonacci number; the 0-th is 0."""\n',
        "    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
        {"0": "0", "1": "1", "2": "1", "10": "55", "90": "2880067194370816120"},
    ),
    Exercise(
        'def nearest(xs, to):\n    """The item closest to a number; the smaller of two."""\n',
        "    best = None\n    for x in sorted(xs):\n"
        "        if best is None or abs(x - to) < abs(best - to):\n            best = x\n"
        "    return best\n",
        {
            "[], 3": "None",
            "[1, 5, 9], 6": "5",
            "[4, 2], 3": "2",
            "[10, -10], 1": "10",
            "[1.5, 2.5], 2.2": "2.5",
        },
    ),
    Exercise(
        'def mean_of_positive(xs):\n    """Mean of the items above 0; 0.0 if there is none."""\n',
        "    kept = [x for x in xs if x > 0]\n"
        "    return sum(kept) / len(kept) if len(kept) > 0 else 0.0\n",
        {
            "[]": "0.0",
            "[1, 2, 4]": "7 / 3",
            "[-1, 5]": "5.0",
            "[0, 0]": "0.0",
            "[0.5, 1, -3]": "0.75",
            "[1, 3]": "2.0",
        },
    ),
]

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot,
}  # fmt: skip


def mutants(source: str) -> Iterator[str]:
    """Every program that one change makes: another operator, a number off by one, an early
    return.
    """
    places = list(ast.walk(ast.parse(source)))
    for number in range(len(places)):
        for change in (swapped, off_by_one, early_return):
            tree = ast.parse(source)
            for variant in range(2):
                copied = copy.deepcopy(tree)
                target = list(ast.walk(copied))[number]
                if change(target, variant):
                    yield ast.unparse(copied)


def swapped(node: ast.AST, variant: int) -> bool:
    """The operators of one expression or comparison."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and variant == 0:
        other = SWAPS.get(type(node.op))
        if other is not None:
            node.op = other()  # type: ignore[assignment]
        return other is not None
    if isinstance(node, ast.Compare) and variant < len(node.ops):
        other = SWAPS.get(type(node.ops[variant]))
        if other is not None:
            node.ops[variant] = other()  # type: ignore[call-overload]
        return other is not None
    return False


def off_by_one(node: ast.AST, variant: int) -> bool:
    """A number one more, or one less."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1 if variant == 0 else -1  # type: ignore[operator]
        return True
    return False


def early_return(node: ast.AST, variant: int) -> bool:
    """Nothing at once, or a loop that ends after its first round."""
    if isinstance(node, ast.FunctionDef) and variant == 0:
        node.body.insert(0, ast.parse("return None").body[0])
        return True
    if isinstance(node, ast.For) and variant == 1:
        node.body.append(ast.Break())
        return True
    return False


def outcome_of(source: str, name: str, args: str) -> Any:
    """What a program of ours gives; it has no loop that a mutation could keep from ending."""
    space: dict[str, Any] = {}
    exec(source, space)
    try:
        return repr(eval(f"{name}({args})", space))
    except Exception as error:
        return type(error)


@pytest.fixture(scope="module")
def verifier() -> Iterator[ComposedVerifier]:
    built = build(VerifierConfig.model_validate("code"))
    yield built
    built.close()


def problem(exercise: Exercise, as_cases: bool) -> Problem:
    fields: dict[str, object] = {"entry_point": exercise.name, "prompt": exercise.head}
    if as_cases:
        fields["cases"] = [
            {"args": list(ast.literal_eval(f"({args},)")), "expected": eval(value)}
            for args, value in exercise.answers.items()
        ]
    else:
        fields["test_code"] = exercise.tests
    return Problem(exercise.name, "", (), reference=exercise.body, fields=fields)


# Cases take the same way through the sandbox for every problem: a few are enough.
WAYS = [(exercise, False) for exercise in EXERCISES] + [
    (exercise, True) for exercise in EXERCISES[:4]
]


@pytest.mark.parametrize(
    ("exercise", "as_cases"), WAYS, ids=[f"{e.name}-{'cases' if c else 'code'}" for e, c in WAYS]
)
def test_mutants_that_change_behaviour_fail(
    exercise: Exercise, as_cases: bool, verifier: ComposedVerifier
) -> None:
    source = exercise.head + exercise.body
    right = [outcome_of(source, exercise.name, args) for args in exercise.answers]
    assert right == [repr(eval(value)) for value in exercise.answers.values()]
    made = list(dict.fromkeys(mutants(source)))
    unchanged = [
        [outcome_of(mutant, exercise.name, args) for args in exercise.answers] == right
        for mutant in made
    ]
    assert unchanged.count(False) >= 2
    texts = [exercise.body, *(f"```python\n{mutant}\n```" for mutant in made)]
    verdicts = verifier.verify([problem(exercise, as_cases)] * len(texts), texts)
    assert (verdicts[0].outcome, verdicts[0].reward) == (Outcome.CORRECT, 1.0), verdicts[0]
    misjudged = [
        (mutant, verdict)
        for mutant, same, verdict in zip(made, unchanged, verdicts[1:], strict=True)
        if verdict.reward != float(same)
    ]
    assert not misjudged
