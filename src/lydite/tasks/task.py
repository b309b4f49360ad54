"""Where problems come from: files, hub datasets, reasoning-gym and our own generator become the
same ``Problem``.

Nothing is dropped in silence: a bad row is refused with its file, line and reason, and a duplicate
is counted in the notes. What a task holds depends on its settings and its seed alone, and its
fingerprint says what it held.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, field_validator, model_validator

from lydite.config import Config, UserError, validate
from lydite.tasks import courtesy, generated
from lydite.tasks.bulk import uncollected
from lydite.tasks.columns import PLACEHOLDERS, ColumnMap, to_problem
from lydite.tasks.select import Part, distinct, in_part
from lydite.tasks.sources import Row, file_rows, gym_problems, hub_rows
from lydite.types import Problem

SOURCES = ("path", "hub", "gym", "generated", "courtesy", "from_stage", "mix")
MIXTURES = {"base": generated.BASE, "cold_start": generated.COLD_START}


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class HubSource(Config):
    """A dataset on the Hugging Face hub."""

    name: str = Field(description="Dataset id on the hub, such as `openai/gsm8k`.")
    subset: str | None = Field(None, description="Configuration of the dataset, such as `main`.")
    split: str = Field("train", description="Split to read.")


class GymSource(Config):
    """Problems that reasoning-gym makes."""

    name: str = Field(description="Name of a reasoning-gym dataset, such as `chain_sum`.")
    count: int = Field(1000, ge=1, description="How many problems to make.")
    config: dict[str, Any] = Field({}, description="Settings of that dataset, passed on unchanged.")
    seed: int | None = Field(
        None,
        description="Seed of the problems; from the run's seed and the task's name if null.",
    )


class StyleMix(Config):
    """The quality of generated worked solutions."""

    styles: dict[str, float] = Field(
        {"clean": 1.0}, description="A weight for each of `clean`, `slip` and `terse`."
    )
    tagged: bool = Field(True, description="Whether solutions carry the think and answer tags.")
    foreign: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of the words between steps that are Chinese, the others being English: "
        "a model that mixes languages. Null: signs instead of words.",
    )


class GeneratedSource(Config):
    """Small reasoning problems that Lydite makes itself."""

    kinds: list[str] | dict[str, float] = Field(
        list(generated.KINDS), description="Kinds of problem, equally often, or a weight for each."
    )
    count: int = Field(1000, ge=1, description="How many problems to make.")
    split: Literal["train", "heldout"] = Field(
        "train",
        description="Which side of the split; a held-out prompt is never a training prompt.",
    )
    worked: Literal["base", "cold_start"] | StyleMix | None = Field(
        None, description="Worked solutions to imitate: a named mixture, or styles with weights."
    )
    seed: int | None = Field(
        None,
        description="Seed of the problems; from the run's seed and the task's name if null.",
    )


class CourtesySource(Config):
    """Short requests without a right answer that Lydite makes itself: `thank Ada about tea`."""

    count: int = Field(1000, ge=1, description="How many requests to make.")
    split: Literal["train", "heldout"] = Field(
        "train",
        description="Which side of the split; a held-out prompt is never a training prompt.",
    )
    worked: dict[str, float] | None = Field(
        None,
        description="A weight for each style of answer to imitate: `good`, `unnamed`, `unfit`, "
        "`stray`, `rambling`, `rude`, `harmful`.",
    )
    pairs: Literal["helpful", "harmless"] | None = Field(
        None,
        description="Pairs of a better and a worse answer instead: `helpful` ones differ in what "
        "is said to the reader, `harmless` ones in a harmful thought.",
    )
    tagged: bool = Field(True, description="Whether answers carry the think and answer tags.")
    foreign: float | None = Field(
        None, ge=0, le=1, description="As in the worked solutions of `generated`."
    )
    seed: int | None = Field(
        None,
        description="Seed of the requests; from the run's seed and the task's name if null.",
    )

    @model_validator(mode="after")
    def _one_use(self) -> CourtesySource:
        if self.worked is not None and self.pairs is not None:
            raise ValueError("give one of worked and pairs: answers to imitate, or to compare")
        return self


class RowsConfig(Config):
    """How rows become problems, and which of them are kept."""

    prompt: str = Field(
        "question",
        description="Column with the question (text, or a list of chat messages), or a template "
        "such as `{Body} {Question}`. Dots reach into nested columns.",
    )
    conversation: str | None = Field(
        None,
        description="Column with a whole conversation to imitate, such as `messages`: a list of "
        "`role` and `content` (or `from` and `value`) that ends with an answer. An `sft` stage "
        "learns each of its answers but those of `weight: 0`. Instead of `prompt` and `worked`.",
    )
    reference: str | None = Field(
        "answer",
        description="Column with the gold answer, text or number; null when there is none, as by "
        "default with `conversation`.",
    )
    reference_marker: str | None = Field(
        None,
        description="Take what follows the last one of these in the reference, without thousands "
        "commas; `####` for GSM8K.",
    )
    worked: str | None = Field(
        None,
        description="Column with a solution to imitate, or a template such as "
        "`<think>{solution}</think><answer>{reference}</answer>`.",
    )
    rejected: str | None = Field(
        None,
        description="Column with a worse solution than `worked`, or a template: the other half of "
        "a pair for a `preference` stage.",
    )
    tag: str | None = Field(
        None, description="Column to report results by, and to choose rewards by (`when`)."
    )
    tag_as: str | None = Field(
        None, min_length=1, description="The same tag for every problem, where no column has it."
    )
    id: str | None = Field(
        None, description="Column with a unique id; a hash of the content when not given."
    )
    template: str = Field(
        "{question}",
        description="What the user turn says. `{question}` (or `{prompt}`, `{problem}`) is the "
        "question; other braces stay as they are.",
    )
    system: str | None = Field(None, description="System prompt.")
    thinking: bool | None = Field(
        None,
        description="The hard switch for these prompts: passed to the chat template as "
        "`enable_thinking`, instead of `model.thinking`.",
    )
    part: Part | None = Field(
        None,
        description="Keep one side of a split by a hash of the question: `{name: train, share: "
        "0.2}`.",
    )
    shuffle_seed: int | None = Field(
        None, description="Shuffle with this seed; order of the source if null."
    )
    limit: int | None = Field(
        None, ge=1, description="Keep at most this many, after `part` and shuffling."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_gold_expected(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("conversation") is None:
            return values
        return {"reference": None, **values}

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.conversation is not None:
            for name in ("prompt", "worked", "rejected", "template"):
                if getattr(self, name) != RowsConfig.model_fields[name].default:
                    raise ValueError(
                        f"{name}: has no effect beside conversation, which holds prompt and answer"
                    )
        return self

    @model_validator(mode="after")
    def _one_tag(self) -> Self:
        if self.tag is not None and self.tag_as is not None:
            raise ValueError("give one of tag (a column) and tag_as (the tag itself)")
        return self

    @field_validator("template")
    @classmethod
    def _template_has_place(cls, value: str) -> str:
        if not PLACEHOLDERS.search(value):
            raise ValueError(
                f"no place for the question in {value!r}; write {{question}} where it goes"
            )
        return value


class TaskConfig(RowsConfig):
    """A set of problems: one source, and how its columns become prompts and references."""

    path: str | list[str] | None = Field(
        None,
        description="File or files to read: `.jsonl`, `.json` or `.parquet`; `*` matches several.",
    )
    hub: Annotated[HubSource | None, BeforeValidator(_named)] = Field(
        None,
        description="A hub dataset: its id, or `name`, `subset` and `split`. Needs the extra "
        "`hub`.",
    )
    gym: Annotated[GymSource | None, BeforeValidator(_named)] = Field(
        None,
        description="A reasoning-gym dataset: its name, or its settings. Needs the extra `gym`.",
    )
    generated: GeneratedSource | None = Field(
        None, description="Problems that Lydite makes itself; no file needed."
    )
    courtesy: CourtesySource | None = Field(
        None,
        description="Requests without a right answer that Lydite makes itself, for preferences.",
    )
    from_stage: str | None = Field(
        None,
        description="Name of a `rejection_sampling` stage: its problems with the completions it "
        "kept as worked solutions, for an `sft` stage after it.",
    )
    mix: dict[str, PositiveFloat] | None = Field(
        None,
        min_length=1,
        description="Other tasks by name, each with the share it has: as many problems as there "
        "can be at these shares without one that comes twice.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> TaskConfig:
        names = [name for name in SOURCES if getattr(self, name) is not None]
        if len(names) != 1:
            given = "none is given" if not names else f"{' and '.join(names)} are given"
            raise ValueError(f"give one of {', '.join(SOURCES)} as the source of problems; {given}")
        if names[0] in ("from_stage", "mix"):
            # Such problems are read and rendered already; a setting without effect misleads.
            idle = [
                name
                for name, field in RowsConfig.model_fields.items()
                if name not in ("limit", "shuffle_seed") and getattr(self, name) != field.default
            ]
            if idle:
                raise ValueError(
                    f"{idle[0]}: has no effect beside {names[0]}; say it where these problems "
                    "come from"
                )
        return self


@dataclass(frozen=True, slots=True)
class TaskData:
    """A task's problems, what a person should know of how they were chosen, and the SHA-256 of
    their content.
    """

    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    fingerprint: str


def load_task(name: str, config: TaskConfig, seed: int) -> TaskData:
    """Reads, renders and selects the problems of a task.

    ``name`` is used in ids and messages. ``seed`` is the run's: it makes generated problems, and
    chooses nothing else.

    Raises:
        UserError: a missing file or extra, a bad row (``file:line: reason``), two rows with one id,
            or no problem left.
    """
    with uncollected():
        return select(name, config, *_read(name, config, seed))


def task_of_rows(
    name: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]
) -> TaskData:
    """A task of rows in memory; ``columns`` are settings of :class:`RowsConfig`.

    Raises:
        UserError: an unknown setting, a bad row (``name: row n: reason``), or no problem left.
    """
    config = validate(RowsConfig, columns, name)
    numbered = [Row(f"{name}: row {n}", row) for n, row in enumerate(rows, start=1)]
    return select(name, config, *_from_rows(name, config, numbered))


def select(name: str, config: RowsConfig, problems: list[Problem], notes: list[str]) -> TaskData:
    """The problems that the settings keep, as a task.

    Raises:
        UserError: none is left.
    """
    if config.tag_as is not None:
        problems = [dataclasses.replace(problem, tag=config.tag_as) for problem in problems]
    if config.part is not None:
        kept = [p for p in problems if in_part(p, config.part)]
        notes.append(
            f"{name}: part {config.part.name} keeps {len(kept)} of {len(problems)} problems"
        )
        problems = kept
    if config.shuffle_seed is not None:
        random.Random(config.shuffle_seed).shuffle(problems)
    if config.limit is not None and config.limit < len(problems):
        notes.append(f"{name}: the first {config.limit} of {len(problems)} problems are used")
        problems = problems[: config.limit]
    if not problems:
        raise UserError(f"tasks.{name}: no problems in it; look at its source, `part` and `limit`")
    return TaskData(tuple(problems), tuple(notes), fingerprint(problems))


def _read(name: str, config: TaskConfig, seed: int) -> tuple[list[Problem], list[str]]:
    """All problems of the source, duplicates of real data removed and counted."""
    if config.from_stage is not None or config.mix is not None:
        source = "from_stage" if config.mix is None else "mix"
        raise UserError(
            f"tasks.{name}.{source}: only a run of the recipe can read it; name a task that has "
            "a source of its own"
        )
    show = _columns(config)
    if config.generated is not None:
        return [show.wrap(p) for p in _generate(name, config.generated, seed)], []
    if config.courtesy is not None:
        return [show.wrap(p) for p in _courtesies(name, config.courtesy, seed)], []
    if config.gym is not None:
        gym = config.gym
        made = gym_problems(gym.name, gym.config, gym.count, own_seed(gym.seed, seed, name))
        return distinct(name, [show.wrap(p) for p in made])
    if config.hub is not None:
        rows = hub_rows(config.hub.name, config.hub.subset, config.hub.split)
    else:
        paths = [config.path] if isinstance(config.path, str) else config.path
        rows = file_rows(paths or [], f"tasks.{name}.path")
    return _from_rows(name, config, rows)


def _columns(config: RowsConfig) -> ColumnMap:
    return ColumnMap(**{f.name: getattr(config, f.name) for f in dataclasses.fields(ColumnMap)})


def _from_rows(name: str, config: RowsConfig, rows: list[Row]) -> tuple[list[Problem], list[str]]:
    columns = _columns(config)
    problems, notes = distinct(name, [to_problem(row, columns, name) for row in rows])
    _check_ids(name, problems)
    return problems, notes


def own_seed(given: int | None, run_seed: int, name: str) -> int:
    """The seed of a task's problems: as given, else its own for each run seed and name, so that
    no two tasks of a run ask the same questions in the same order.
    """
    if given is not None:
        return given
    return int.from_bytes(hashlib.blake2b(f"{run_seed}:{name}".encode(), digest_size=4).digest())


def _generate(name: str, source: GeneratedSource, seed: int) -> list[Problem]:
    mixture = source.worked
    mixed = (
        generated.Mixture(mixture.styles, mixture.tagged, mixture.foreign)
        if isinstance(mixture, StyleMix)
        else MIXTURES[mixture]
        if mixture
        else None
    )
    own = own_seed(source.seed, seed, name)
    try:
        return generated.generate(source.kinds, source.count, own, source.split, mixed)
    except ValueError as error:
        raise UserError(f"tasks.{name}.generated.{error}") from error


def _courtesies(name: str, source: CourtesySource, seed: int) -> list[Problem]:
    own = own_seed(source.seed, seed, name)
    try:
        return courtesy.generate(
            source.count,
            own,
            source.split,
            None
            if source.worked is None
            else generated.Mixture(source.worked, source.tagged, source.foreign),
            source.pairs,
        )
    except ValueError as error:
        raise UserError(f"tasks.{name}.courtesy.{error}") from error


def _check_ids(name: str, problems: list[Problem]) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise UserError(f"tasks.{name}.id: two different problems have the id {problem.id!r}")
        seen.add(problem.id)


def fingerprint(problems: list[Problem]) -> str:
    """SHA-256, in hex, of everything the problems hold, in order."""
    digest = hashlib.sha256()
    names = [f.name for f in dataclasses.fields(Problem)]
    encode = json.JSONEncoder(sort_keys=True, default=str).encode
    for problem in problems:
        record = {name: getattr(problem, name) for name in names}
        # What is as by default is left out: problems keep the fingerprint that they always had.
        record["messages"] = [
            [m.role, m.content, *(["learned"] if m.learned else [])] for m in problem.messages
        ]
        record["fields"] = dict(problem.fields)
        for name in ("rejected", "thinking"):
            if record[name] is None:
                del record[name]
        digest.update(encode(record).encode() + b"\n")
    return digest.hexdigest()
