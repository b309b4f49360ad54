"""Rewards that are plain functions: ``def reward(prompts, completions, **columns) -> list[float |
None]``.

The signature used across the field, sync or async. A function is called once for the completions
of one problem that stand together, every argument by name and a list of that length:

- ``prompts``: the text of the last user message; ``completions``: the texts;
- ``reference`` and ``answer``: the reference answer (a column of the data named ``answer`` takes
its place);
- every other column of the data by its name, and ``problem_id``.

It gets the ones that it names, or all if it takes ``**columns``.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from lydite.config import UserError
from lydite.types import Outcome, Problem, Unit
from lydite.verify.pool import Handler, Item, Pool, Reply
from lydite.verify.score import Score
from lydite.verify.settings import FunctionConfig

RewardFunction = Callable[..., Any]

TRIED = 3
"""Problems that a function is tried on before a run."""


def load_function(name: str) -> RewardFunction:
    """The function that ``module:function`` or ``path/file.py:function`` names.

    Raises:
        UserError: it cannot be imported, is not there or is not callable.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UserError(f"reward function {name!r}: write module:function or path/file.py:function")
    try:
        file = Path(place)
        module = (
            _load_file(file.resolve(), _changed(file))
            if file.suffix == ".py"
            else importlib.import_module(place)
        )
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"reward function {name}: importing {place} failed: {_brief(error)}"
        ) from error
    function: Any = functools.reduce(
        lambda owner, part: getattr(owner, part, None), attribute.split("."), module
    )
    if not callable(function):
        near = ", ".join(
            sorted(key for key, value in vars(module).items() if inspect.isfunction(value))[:8]
        )
        raise UserError(
            f"reward function {name}: {place} has no function {attribute!r}; it has: "
            f"{near or 'none'}"
        )
    found: RewardFunction = function
    return found


def _changed(path: Path) -> int:
    """When the file was last written, in nanoseconds: an edited one is loaded again."""
    if not path.is_file():
        raise UserError(
            f"reward function: no file {path}; the path is relative to where the command runs"
        )
    return path.stat().st_mtime_ns


@functools.lru_cache(maxsize=32)
def _load_file(path: Path, changed: int) -> Any:
    del changed
    spec = importlib.util.spec_from_file_location(f"lydite_reward_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name while they are made. Afterwards it goes: what is
    # pickled by reference to it could be loaded in no worker.
    before = sys.modules.get(spec.name)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del sys.modules[spec.name]
        else:
            sys.modules[spec.name] = before
    return module


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the completions of one problem. ``columns`` holds one value each, repeated for
    every completion.
    """

    problem_id: str
    prompt: str
    completions: tuple[str, ...]
    columns: Mapping[str, object]


def calls_of(problems: Sequence[Problem], texts: Sequence[str]) -> list[Call]:
    """The pairs cut where the problem changes."""
    calls: list[Call] = []
    start = 0
    for end in range(1, len(problems) + 1):
        if end < len(problems) and problems[end].id == problems[start].id:
            continue
        problem = problems[start]
        prompt = next(
            (m.content for m in reversed(problem.messages) if m.role == "user"), problem.question
        )
        columns = {
            "question": problem.question,
            "tag": problem.tag,
            "answer": problem.reference,
            **problem.fields,
            "reference": problem.reference,
            "problem_id": problem.id,
        }
        calls.append(Call(problem.id, prompt, tuple(texts[start:end]), columns))
        start = end
    return calls


def call_function(function: RewardFunction, name: str, call: Call) -> list[float | None]:
    """The rewards of one call, checked.

    Raises:
        UserError: the function raises, lacks an argument, or returns the wrong count, a
        non-number, NaN or infinity.
            The line names the function and the problem.
    """
    where = f"on problem {call.problem_id}"
    if inspect.isclass(function):
        raise UserError(
            f"reward function {name} is a class; give an object of it, or a function that makes "
            "one and calls it"
        )
    arguments = _arguments(function, name, call)
    try:
        returned = function(**arguments)
        if inspect.isawaitable(returned):
            returned = _await(returned)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"reward function {name} raised {_brief(error)} {where}{_line_of(error)}; mend the "
            f"function"
        ) from error
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    count = len(call.completions)
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise UserError(
            f"reward function {name} is a generator {where}; return a list of {count} numbers "
            "instead of yielding them"
        )
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Sequence):
        raise UserError(
            f"reward function {name} returned {type(returned).__name__} {where}; return a list "
            f"of {count} numbers"
        )
    if len(returned) != count:
        raise UserError(
            f"reward function {name} returned {len(returned)} rewards for {count} completions "
            f"{where}; return one each"
        )
    return [_number(reward, index, name, where) for index, reward in enumerate(returned)]


def _arguments(function: RewardFunction, name: str, call: Call) -> dict[str, list[Any]]:
    count = len(call.completions)
    offered = {key: [value] * count for key, value in call.columns.items()}
    offered["prompts"] = [call.prompt] * count
    offered["completions"] = list(call.completions)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return offered
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in offered
    ]
    if missing:
        raise UserError(
            f"reward function {name} asks for {missing[0]!r}, which problem {call.problem_id} "
            f"does not have; "
            f"there are: {', '.join(sorted(offered))}"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    return {
        parameter.name: offered[parameter.name]
        for parameter in parameters
        if parameter.name in offered
    }


def _await(returned: Any) -> Any:
    async def wait() -> Any:
        return await returned

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    # A notebook's thread already runs a loop, which cannot be entered again.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def _number(reward: Any, index: int, name: str, where: str) -> float | None:
    if reward is None:
        return None
    if not isinstance(reward, numbers.Real) and hasattr(reward, "item"):
        reward = reward.item()
    if not isinstance(reward, numbers.Real):
        raise UserError(
            f"reward function {name} returned {reward!r:.60} for completion {index} {where}; "
            f"return numbers or None"
        )
    value = float(reward)
    if not math.isfinite(value):
        raise UserError(
            f"reward function {name} returned {value} for completion {index} {where}; return "
            f"finite numbers or None"
        )
    return value


def _brief(error: BaseException) -> str:
    return " ".join(repr(error).split())[:300]


def _line_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if len(frames) > 1 else ""


@dataclass(frozen=True, slots=True)
class _Shipped:
    """A function on its way to a worker: its name to import there, or itself, pickled by
    cloudpickle.
    """

    name: str
    pickled: bytes | None


def function_handler(function: str | RewardFunction, name: str) -> Handler:
    """The pool handler for a function.

    Raises:
        UserError: a function that is not importable cannot be pickled either.
    """
    if isinstance(function, str):
        load_function(function)
        return Handler("lydite.verify.function:caller", _Shipped(function, None))
    try:
        pickled = cloudpickle.dumps(function)
    except Exception as error:
        raise UserError(
            f"reward function {name} cannot be sent to a worker process: {_brief(error)}; set "
            f"isolation: inline"
        ) from error
    return Handler("lydite.verify.function:caller", _Shipped(name, pickled))


def caller(setup: Any) -> Callable[[Any], list[float | None]]:
    """A pool handler: a :class:`Call` to its rewards."""
    if setup.pickled is None:
        function = load_function(setup.name)
    else:
        try:
            function = cloudpickle.loads(setup.pickled)
        except Exception as error:
            raise UserError(
                f"reward function {setup.name} cannot be loaded in a worker process: "
                f"{_brief(error)}; set isolation: inline"
            ) from error
    return lambda call: call_function(function, setup.name, call)


class FunctionReward:
    """What a plain function says; correct when that is above ``correct_above``.

    ``None`` from the function leaves the completion out (outcome ``ungradable``). A call that
    passes its limit (the item limit for each of its completions) or takes its worker down is ours
    or the function's fault, not the model's: ``crashed``, no reward.
    """

    def __init__(
        self, config: FunctionConfig, name: str, pool: Pool | None, handler: int, seconds: float
    ) -> None:
        self.name = name
        self.weight = config.weight
        self.decides = 1
        self.unit: Unit = "problem"  # a function is given all of a problem's completions
        self._spelled = config.function if isinstance(config.function, str) else name
        self._correct_above = config.correct_above
        self._pool = pool
        self._handler = handler
        self._seconds = seconds
        function = config.function
        self._function = (
            None if pool else load_function(function) if isinstance(function, str) else function
        )

    def score(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """One score per completion, in order.

        Raises:
            UserError: the function is at fault; see :func:`call_function`.
        """
        calls = calls_of(problems, texts)
        if self._pool is None:
            assert self._function is not None
            replies = [
                Reply("done", call_function(self._function, self._spelled, call)) for call in calls
            ]
        else:
            items = [
                Item(self._handler, call, self._seconds * len(call.completions)) for call in calls
            ]
            replies = self._pool.run(items)
        return [
            score
            for call, reply in zip(calls, replies, strict=True)
            for score in self._scores(call, reply)
        ]

    def check_golds(self, problems: Sequence[Problem]) -> list[str | None]:
        """Calls the function before anything depends on it, on the first few problems.

        Each gets two completions, the reference and nothing: a function that answers with one
        number whatever it is given is found here. What it pays is its own affair.

        Raises:
            UserError: the function is at fault; see :func:`call_function`.
        """
        faults: list[str | None] = [None] * len(problems)
        for index, problem in enumerate(problems[:TRIED]):
            scores = self.score([problem] * 2, [problem.reference or "", ""])
            crashed = [score.detail for score in scores if score.outcome is Outcome.CRASHED]
            faults[index] = crashed[0] if crashed else None
        return faults

    def _scores(self, call: Call, reply: Reply) -> list[Score]:
        count = len(call.completions)
        seconds = reply.seconds / count
        if reply.status != "done" or not isinstance(reply.value, list) or len(reply.value) != count:
            detail = f"reward function {self._spelled}: {reply.detail or 'no rewards came back'}"
            return [Score(Outcome.CRASHED, None, detail=detail, seconds=seconds)] * count
        return [self._score(value, seconds) for value in reply.value]

    def _score(self, value: float | None, seconds: float) -> Score:
        if value is None:
            return Score(
                Outcome.UNGRADABLE,
                None,
                detail=f"reward function {self._spelled} returned None",
                seconds=seconds,
            )
        outcome = Outcome.CORRECT if value > self._correct_above else Outcome.WRONG
        return Score(outcome, float(value), seconds=seconds)
