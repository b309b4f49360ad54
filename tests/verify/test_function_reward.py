"""Plain functions keep the field's signature; what they do wrong is said in one line."""

import asyncio
import functools
import math
from pathlib import Path
from typing import Any

import pytest

from lydite.config import UserError, validate
from lydite.types import Message, Outcome, Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.function import Call, call_function, calls_of, load_function


def problem(name: str, reference: str | None = "3", **fields: object) -> Problem:
    return Problem(
        name, f"question {name}", (Message("user", f"prompt {name}"),), reference, fields=fields
    )


CALL = calls_of([problem("gsm8k-17")] * 2, ["a", "bb"])[0]


def test_one_call_for_each_run_of_one_problem() -> None:
    a, b = problem("a", "1", level=4), problem("b", "2", level=5)
    assert calls_of([a, a, b, a], ["1", "2", "3", "4"]) == [
        Call("a", "prompt a", ("1", "2"), _columns("a", "1", 4)),
        Call("b", "prompt b", ("3",), _columns("b", "2", 5)),
        Call("a", "prompt a", ("4",), _columns("a", "1", 4)),
    ]
    assert calls_of([], []) == []


def _columns(name: str, reference: str, level: int) -> dict[str, object]:
    return {
        "question": f"question {name}",
        "tag": "",
        "answer": reference,
        "level": level,
        "reference": reference,
        "problem_id": name,
    }


def test_arguments_come_by_name_and_as_lists() -> None:
    def named(completions: list[str], answer: list[str], prompts: list[str]) -> list[float]:
        assert (completions, answer, prompts) == (["a", "bb"], ["3", "3"], ["prompt gsm8k-17"] * 2)
        return [1, 2]

    def greedy(prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
        assert set(columns) == {"question", "tag", "answer", "reference", "problem_id"}
        return [0.5] * len(completions)

    async def later(completions: list[str], missing: int = 7) -> list[float]:
        await asyncio.sleep(0)
        return [float(missing)] * len(completions)

    assert call_function(named, "named", CALL) == [1.0, 2.0]
    assert call_function(greedy, "greedy", CALL) == [0.5, 0.5]
    assert call_function(later, "later", CALL) == [7.0, 7.0]

    async def within_a_loop() -> list[float | None]:
        return call_function(later, "later", CALL)

    assert asyncio.run(within_a_loop()) == [7.0, 7.0]


def test_a_column_of_the_data_named_answer_takes_its_place() -> None:
    call = calls_of([problem("p", "3", answer="worked: 3")], ["x"])[0]
    seen: dict[str, Any] = {}
    call_function(
        lambda completions, answer, reference: [seen.update(a=answer, r=reference) or 1], "f", call
    )
    assert seen == {"a": ["worked: 3"], "r": ["3"]}


def test_none_and_numbers_of_any_kind_are_rewards() -> None:
    import numpy

    assert call_function(lambda completions: [None, True], "f", CALL) == [None, 1.0]
    assert call_function(lambda completions: numpy.array([0.5, 1.5]), "f", CALL) == [0.5, 1.5]
    assert call_function(lambda completions: (numpy.float32(2), numpy.int64(1)), "f", CALL) == [
        2.0,
        1.0,
    ]


def _raises(completions: list[str]) -> list[float]:
    raise KeyError("x")


def _quits(completions: list[str]) -> list[float]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            _raises,
            r"raised KeyError\('x'\) on problem gsm8k-17 \(at test_function_reward\.py:\d+\)",
        ),
        (_quits, r"raised SystemExit\(3\) on problem gsm8k-17"),
        (lambda completions: [1.0], "returned 1 rewards for 2 completions on problem gsm8k-17"),
        (lambda completions: 1.0, "returned float on problem gsm8k-17; return a list of 2"),
        (lambda completions: "ab", "returned str on problem gsm8k-17"),
        (lambda completions: [1.0, "high"], "returned 'high' for completion 1 on problem gsm8k-17"),
        (lambda completions: [math.nan, 1.0], "returned nan for completion 0 on problem gsm8k-17"),
        (lambda completions: [1.0, math.inf], "returned inf for completion 1"),
        (
            lambda completions, level: [1.0],
            "asks for 'level', which problem gsm8k-17 does not have",
        ),
    ],
)
def test_mistakes_are_one_line_that_names_function_and_problem(function: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^reward function mine:score {said}") as caught:
        call_function(function, "mine:score", CALL)
    assert "\n" not in str(caught.value)


def test_loading_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def score(completions):\n    return [1.0] * len(completions)\n")
    assert load_function(f"{file}:score")(["a"]) == [1.0]
    assert load_function("math:sqrt") is math.sqrt
    for name, said in [
        (f"{file}:scores", "has no function 'scores'; it has: score"),
        (f"{tmp_path}/other.py:score", "no file"),
        ("no_such_module:score", "importing no_such_module failed"),
        ("score", "write module:function"),
    ]:
        with pytest.raises(UserError, match=said):
            load_function(name)


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_in_a_worker_or_inline_it_says_the_same(tmp_path: Path, isolation: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def score(completions, answer, **columns):\n"
        "    print('a user prints')\n"
        "    return [None if c == '?' else float(a in c) for c, a in zip(completions, answer)]\n"
    )
    config = validate(
        VerifierConfig, {"kind": "function", "function": f"{file}:score", "isolation": isolation}
    )
    verifier = build(config)
    verdicts = verifier.verify([problem("a"), problem("a"), problem("b", "9")], ["3", "4", "?"])
    verifier.close()
    assert [v.outcome for v in verdicts] == [Outcome.CORRECT, Outcome.WRONG, Outcome.UNGRADABLE]
    assert [v.reward for v in verdicts] == [1.0, 0.0, None]
    assert verdicts[0].parts == {"score": 1.0}


def test_a_closure_travels_and_its_failures_are_ours() -> None:
    bonus = 2.0

    def score(completions: list[str]) -> list[float]:
        if "die" in completions:
            import os

            os._exit(1)
        while "spin" in completions:
            pass
        if "raise" in completions:
            raise ZeroDivisionError
        return [bonus] * len(completions)

    verifier = build(
        VerifierConfig.model_validate(
            {"rewards": [score], "limits": {"seconds": 0.5, "workers": 1}}
        )
    )
    names = ["a", "b", "c", "d"]
    verdicts = verifier.verify([problem(n) for n in names], ["x", "die", "spin", "y"])
    assert [v.outcome for v in verdicts] == ["correct", "crashed", "crashed", "correct"]
    assert [v.reward for v in verdicts] == [2.0, None, None, 2.0]
    with pytest.raises(
        UserError, match=r"reward function score raised ZeroDivisionError\(\) on problem e"
    ):
        verifier.verify([problem("e")], ["raise"])
    verifier.close()


def test_what_cannot_be_sent_says_so() -> None:
    import threading

    lock = threading.Lock()

    def score(completions: list[str]) -> list[float]:
        with lock:
            return [1.0] * len(completions)

    with pytest.raises(UserError, match=r"cannot be sent to a worker process.*isolation: inline"):
        build(VerifierConfig.model_validate(score))
    inline = {"kind": "function", "function": score, "isolation": "inline"}
    assert (
        build(VerifierConfig.model_validate(inline)).verify([problem("a")], ["x"])[0].reward == 1.0
    )


class Bonus:
    """A reward that is an object."""

    def __init__(self, size: float) -> None:
        self.size = size

    async def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        await asyncio.sleep(0)
        return [self.size * len(c) for c in completions]

    def score(self, completions: list[str]) -> list[float]:
        return [self.size] * len(completions)


def scaled(completions: list[str], size: float) -> list[float]:
    return [size] * len(completions)


async def scaled_later(completions: list[str], size: float) -> list[float]:
    await asyncio.sleep(0)
    return [size] * len(completions)


def doubled(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> list[float]:
        return [2 * value for value in function(*args, **kwargs)]

    return call


@doubled
def decorated(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_whatever_can_be_called(isolation: str) -> None:
    given = {
        "Bonus": (Bonus(2.0), 4.0),
        "score": (Bonus(3.0).score, 3.0),
        "scaled": (functools.partial(scaled, size=4.0), 4.0),
        "scaled_later": (functools.partial(scaled_later, size=5.0), 5.0),
        "decorated": (decorated, 2.0),
    }
    rewards = [
        {"kind": "function", "function": function, "isolation": isolation}
        for function, _ in given.values()
    ]
    config = VerifierConfig.model_validate({"rewards": rewards, "limits": {"workers": 1}})
    verifier = build(config, [problem("a")])
    verdict = verifier.verify([problem("a")], ["ab"])[0]
    verifier.close()
    assert verdict.parts == {name: paid for name, (_, paid) in given.items()}


def _yields(completions: list[str]) -> Any:
    yield from [1.0] * len(completions)


async def _yields_later(completions: list[str]) -> Any:
    yield 1.0


@pytest.mark.parametrize("isolation", ["process", "inline"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_yields, "is a generator on problem a; return a list of 2 numbers"),
        (_yields_later, "is a generator on problem a; return a list of 2 numbers"),
        (Bonus, "reward function Bonus is a class; give an object of it"),
    ],
)
def test_what_is_no_reward_function_is_one_line(function: Any, said: str, isolation: str) -> None:
    reward = {"kind": "function", "function": function, "isolation": isolation}
    config = {"rewards": [reward], "limits": {"workers": 1}}
    with pytest.raises(UserError, match=said) as caught:
        build(VerifierConfig.model_validate(config), [problem("a")])
    assert "\n" not in str(caught.value)


def test_an_async_function_that_never_ends_costs_its_limit() -> None:
    async def hangs(completions: list[str]) -> list[float]:
        await asyncio.sleep(3600)
        return [1.0] * len(completions)

    config = {"rewards": [hangs], "limits": {"seconds": 0.5, "workers": 1}}
    verifier = build(VerifierConfig.model_validate(config))
    verdict = verifier.verify([problem("a")], ["x"])[0]
    verifier.close()
    assert (verdict.outcome, verdict.reward) == (Outcome.CRASHED, None)


def test_a_file_may_hold_what_looks_its_own_module_up(tmp_path: Path) -> None:
    """Dataclasses with annotations as text ask for the module that they are in."""
    file = tmp_path / "scores.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar, NamedTuple\n"
        "@dataclass\n"
        "class Limits:\n"
        "    most: ClassVar[int] = 9\n"
        "    least: float = 0.5\n"
        "class Pair(NamedTuple):\n"
        "    a: int\n"
        "def score(completions, **_):\n"
        "    return [Limits().least for _ in completions]\n"
    )
    assert call_function(load_function(f"{file}:score"), "score", CALL) == [0.5, 0.5]


def test_a_file_leaves_no_module_behind(tmp_path: Path) -> None:
    import sys

    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('no')\n")
    before = set(sys.modules)
    with pytest.raises(UserError, match="no"):
        load_function(f"{file}:score")
    file.write_text("def score(completions, **_):\n    return [1.0 for _ in completions]\n")
    assert call_function(load_function(f"{file}:score"), "score", CALL) == [1.0, 1.0]
    assert not {name for name in set(sys.modules) - before if "broken" in name}
