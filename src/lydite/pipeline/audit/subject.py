"""What is to be audited: a verifier's name, a reward function, a file of settings, or a recipe;
and the problems to attack it with.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from lydite.config import UserError, load_yaml, validate
from lydite.pipeline.catalogue import find_recipe
from lydite.tasks.task import TaskConfig, load_task
from lydite.types import Problem
from lydite.verify.audit.attack import Example, Kind
from lydite.verify.audit.builtin import builtin
from lydite.verify.audit.kinds import kind_of
from lydite.verify.audit.probe import ChatFunction
from lydite.verify.compose import ComposedVerifier
from lydite.verify.settings import FORM_ONLY, AnyReward, VerifierConfig, all_rewards
from lydite.verify.text_config import LengthConfig
from lydite.verify.verifier import build, verify_golds

_OWN_PROBLEMS: dict[str, tuple[Kind, ...]] = {
    "code": ("code",), "sql": ("sql",), "choice": ("choice",),
}  # fmt: skip
DEFAULT_LIMIT = 20
_NO_REFERENCE = {"regex", "instruction", "gate", "cascade"}
_BY_VALUE = {"math", "choice", "code", "sql", "gym", "judge", "function"}


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for.

    ``tasks`` are files of problems, or a recipe's tasks by name; ``columns`` are settings of a
    task, for files. ``limit`` is how many problems are attacked: by default 20, or all of the
    built-in ones.
    """

    target: str
    tasks: Sequence[str] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    seed: int = 0
    seconds: float | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Spelling:
    """A verifier in a form that can be written to a file: its settings as JSON holds them, and
    the function that it is, if it takes chat messages.
    """

    settings: Mapping[str, Any]
    chat_function: str | None = None

    def config(self) -> VerifierConfig:
        """The verifier's settings.

        Raises:
            UserError: they are not valid.
        """
        if self.chat_function is None:
            return validate(VerifierConfig, self.settings, "verifier")
        function = ChatFunction(self.chat_function)
        rewards = [{"kind": "function", "function": function}]
        return validate(VerifierConfig, {**self.settings, "rewards": rewards}, "verifier")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is audited. ``notes`` are what a person should know of how it was set up."""

    name: str
    spelling: Spelling
    config: VerifierConfig
    examples: Sequence[Example]
    notes: Sequence[str] = ()

    @property
    def by_value(self) -> bool:
        """Whether it promises to accept what equals the reference in another form."""
        return any(reward.kind in _BY_VALUE for reward in all_rewards(self.config.rewards))

    @property
    def grouped(self) -> bool:
        """Whether it compares the completions of a problem with each other by design."""
        return any(
            isinstance(reward, LengthConfig) and reward.rule != "overlong"
            for reward in all_rewards(self.config.rewards)
        )

    @property
    def data(self) -> bool:
        """Whether what compares with the reference in it reads JSON and nothing else does."""
        comparing = [
            reward.kind
            for reward in all_rewards(self.config.rewards)
            if not isinstance(reward, FORM_ONLY) and reward.kind not in ("gate", "cascade")
        ]
        return bool(comparing) and set(comparing) == {"json"}

    @property
    def functions(self) -> list[Any]:
        """The user's functions in it."""
        return [
            reward.function
            for reward in all_rewards(self.config.rewards)
            if reward.kind == "function"
        ]


def load_subject(request: Request) -> tuple[Subject, ComposedVerifier]:
    """Finds what is audited, and problems whose references it can use.

    Raises:
        UserError: there is no such thing, it cannot be loaded, or fails on a plain answer.
    """
    name = request.target
    settings, problems = _find(request)
    limits = {"seconds": request.seconds, "workers": request.workers}
    given = {key: value for key, value in limits.items() if value is not None}
    config = validate(VerifierConfig, settings, name)
    if given:
        config = config.model_copy(update={"limits": config.limits.model_copy(update=given)})
    config = config.model_copy(update={"rewards": [_apart(each) for each in config.rewards]})
    notes: list[str] = []
    if problems is None:
        inside = list(all_rewards(config.rewards))
        suited = {kind for each in inside for kind in _OWN_PROBLEMS.get(each.kind, ())}
        examples = builtin(tuple(suited) or None)[: request.limit]
        notes.append(f"{len(examples)} built-in problems; --tasks FILE attacks it with yours")
    else:
        examples = _chosen(problems, request)
        notes.append(f"{len(examples)} of {len(problems)} problems")
    if all(
        isinstance(each, FORM_ONLY) or each.kind in _NO_REFERENCE
        for each in all_rewards(config.rewards)
    ):
        notes.append("nothing in it compares with a reference: put a reward beside it that does")
    spelling = Spelling(config.model_dump(mode="json"))
    spelling, verifier = _started(config, spelling, examples, notes)
    try:
        usable = _usable(verifier, examples, notes)
    except BaseException:
        verifier.close()
        raise
    return Subject(name, spelling, spelling.config(), usable, notes), verifier


def _apart(reward: AnyReward) -> AnyReward:
    """A function in a process of its own: what attacks it must not reach the audit."""
    if reward.kind == "function" and isinstance(reward.function, str):
        return reward.model_copy(update={"isolation": "process"})
    return reward


def _find(request: Request) -> tuple[Mapping[str, Any], list[Problem] | None]:
    """The settings of the verifier, and the problems that were asked for or come with it."""
    target = request.target
    named = target in kinds() or (":" in target and not target.endswith((".yaml", ".yml")))
    if named:
        return {"rewards": target}, _problems(request, {})
    path = Path(target)
    loaded = load_yaml(path if path.is_file() else find_recipe(target), list_key="verifier")
    if "stages" in loaded:
        return _of_recipe(loaded, request)
    inner = loaded.get("verifier", loaded)
    return _spread(inner), _problems(request, {})


def _spread(inner: Any) -> Mapping[str, Any]:
    if not isinstance(inner, Mapping):
        return {"rewards": inner}
    if "kind" not in inner:
        return inner
    reward = {key: value for key, value in inner.items() if key != "limits"}
    return {"rewards": reward, **({"limits": inner["limits"]} if "limits" in inner else {})}


def _of_recipe(
    loaded: Mapping[str, Any], request: Request
) -> tuple[Mapping[str, Any], list[Problem] | None]:
    """The verifier of a recipe, and the problems of its RL stages unless others are named."""
    given = loaded.get("tasks")
    tasks: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    stages = [stage for stage in loaded["stages"] if isinstance(stage, Mapping)]
    used = [str(stage.get("task", "train")) for stage in stages if stage.get("kind") == "rl"]
    seed = loaded.get("seed", 0)
    names = list(request.tasks) or list(dict.fromkeys(name for name in used if name in tasks))
    wanted = replace(request, tasks=names, seed=seed if isinstance(seed, int) else 0)
    return _spread(loaded.get("verifier", "math")), _problems(wanted, tasks)


def _problems(request: Request, tasks: Mapping[str, Any]) -> list[Problem] | None:
    if not request.tasks:
        return None
    found: list[Problem] = []
    for name in request.tasks:
        settings = tasks.get(name)
        if settings is None and not Path(name).exists() and tasks:
            raise UserError(f"--tasks: no file and no task {name!r}; there are {', '.join(tasks)}")
        if settings is None:
            settings = {**request.columns, "path": name}
        config = validate(TaskConfig, settings, f"tasks.{name}")
        found += load_task(Path(name).stem, config, request.seed).problems
    return found


def _chosen(problems: Sequence[Problem], request: Request) -> list[Example]:
    """As many problems as are asked for, by seed, of every kind of answer as far as they reach."""
    able = [each for each in problems if each.reference or kind_of(each) == "code"]
    random.Random(request.seed).shuffle(able)
    by_kind: dict[Kind, list[Problem]] = {}
    for problem in able:
        by_kind.setdefault(kind_of(problem), []).append(problem)
    kept: list[Problem] = []
    most = min(request.limit or DEFAULT_LIMIT, len(able))
    while len(kept) < most:
        for waiting in by_kind.values():
            if waiting and len(kept) < most:
                kept.append(waiting.pop(0))
    return [Example(problem) for problem in kept]


def _started(
    config: VerifierConfig, spelling: Spelling, examples: Sequence[Example], notes: list[str]
) -> tuple[Spelling, ComposedVerifier]:
    """The verifier, tried on a plain answer; a function that fails on text is tried on chat."""
    verifier = build(config)
    first = [example.problem for example in examples][:1]
    answers = [problem.reference or "" for problem in first]
    try:
        verifier.warm()
        verifier.verify(first, answers)
        return spelling, verifier
    except UserError as error:
        verifier.close()
        function = config.rewards[0]
        if len(config.rewards) > 1 or function.kind != "function":
            raise
        if not isinstance(function.function, str) or " raised " not in str(error):
            raise
        chat = Spelling(spelling.settings, function.function)
        verifier = build(chat.config())
        try:
            verifier.verify(first, answers)
        except UserError:
            verifier.close()
            raise error from None
        notes.append("completions are handed over as chat messages: the function takes no text")
        return chat, verifier
    except BaseException:
        verifier.close()
        raise


def _usable(
    verifier: ComposedVerifier, examples: Sequence[Example], notes: list[str]
) -> list[Example]:
    """Without the problems whose references cannot be used, which are counted."""
    faults = {
        fault.problem_id: fault.reason
        for fault in verify_golds(verifier, [example.problem for example in examples])
    }
    if faults:
        first = next(iter(faults))
        notes.append(f"{len(faults)} references cannot be checked, such as {first}: "
                     f"{faults[first]}")  # fmt: skip
    usable = [example for example in examples if example.problem.id not in faults]
    if examples and not usable:
        fault = next(iter(faults.values()))
        remedy = "mend it, or give more --seconds" if "no result after" in fault else (
            "give --tasks that suit it"
        )  # fmt: skip
        raise UserError(f"audit: no problem can be checked ({fault}); {remedy}")
    return usable


def kinds() -> list[str]:
    """The kinds of reward that can be audited by name."""
    union, *_ = get_args(AnyReward)
    return [
        name
        for record in get_args(union)
        for name in get_args(record.model_fields["kind"].annotation)
        if name != "function"
    ]
