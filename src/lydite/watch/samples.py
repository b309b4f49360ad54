"""Every rollout of a run on disk: ``samples/<stage>/step-000012.parquet``, one row a completion.

A file is written whole or not at all, so a step that a resumed run does again simply replaces its
file. pyarrow is imported where it is used: reading a run's events needs none of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lydite.types import Completion, Group, Problem
from lydite.watch.files import encodable, write_atomic

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion. ``reward`` and ``advantage`` are ``None`` where the verifier could not
    decide; where each token has its own, ``advantage`` is their mean. ``tokens`` counts those that
    the model sampled; ``parts`` are the rewards that were combined, by name. ``budget`` and
    ``thought`` are tokens, where there was a thinking budget; ``cut``: it ended the thought.
    ``staleness`` and ``staleness_max`` are updates between the versions that sampled its tokens and
    the one that trained on it, where sampling runs beside training.
    """

    step: int
    problem_id: str
    sample: int
    prompt: str
    completion: str
    reward: float | None
    outcome: str
    advantage: float | None = None
    answer: str | None = None
    reference: str | None = None
    finish: str = ""
    tokens: int = 0
    tag: str = ""
    detail: str = ""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    budget: int | None = None
    thought: int | None = None
    cut: bool = False
    staleness: float | None = None
    staleness_max: int | None = None


def samples_of(
    group: Group,
    advantages: Sequence[float],
    step: int,
    prompt: str | None = None,
    now: int | None = None,
) -> list[Sample]:
    """One row per completion of ``group``. ``advantages`` is ``[G]``, NaN where excluded;
    ``prompt`` is the text as the model saw it, or else the messages, one after another; ``now`` is
    the policy version that trains on it, where sampling may lag behind.
    """
    shown = plain_prompt(group.problem) if prompt is None else prompt
    return [
        Sample(
            step=step,
            problem_id=group.problem.id,
            sample=completion.sample,
            prompt=shown,
            completion=completion.text,
            reward=_finite(verdict.reward),
            outcome=str(verdict.outcome),
            advantage=_finite(advantage),
            answer=verdict.answer,
            reference=group.problem.reference,
            finish=completion.finish,
            tokens=completion.sampled,
            tag=group.problem.tag,
            detail=verdict.detail,
            parts=dict(verdict.parts),
            **_thought(completion),
            **_staleness(completion, now),
        )
        for completion, verdict, advantage in zip(
            group.completions, group.verdicts, advantages, strict=True
        )
    ]


def _thought(completion: Completion) -> dict[str, Any]:
    thought = completion.thought
    if thought is None:
        return {}
    return {"budget": thought.budget, "thought": thought.tokens, "cut": thought.cut}


def _staleness(completion: Completion, now: int | None) -> dict[str, Any]:
    runs = [(version, count) for version, count in completion.version_runs if count]
    if now is None or not runs:
        return {}
    return {
        "staleness": sum((now - then) * count for then, count in runs) / completion.sampled,
        "staleness_max": max(now - then for then, _ in runs),
    }


def plain_prompt(problem: Problem) -> str:
    """The messages of a problem as text, each under its role."""
    return "\n\n".join(f"{message.role}: {message.content}" for message in problem.messages)


def samples_path(directory: Path, stage: str, step: int) -> Path:
    """Where the rollouts of a step lie under a run's ``samples`` folder."""
    return directory / stage / f"step-{step:06d}.parquet"


def write_samples(directory: Path, stage: str, step: int, samples: Iterable[Sample]) -> Path:
    """Writes the rollouts of one step to :func:`samples_path` and returns it.

    Raises:
        UserError: the disk is full.
    """
    path = samples_path(directory, stage, step)
    write_sample_file(path, samples)
    return path


def write_sample_file(path: Path, samples: Iterable[Sample]) -> None:
    """Writes rows as one Parquet file, whole or not at all.

    Raises:
        UserError: the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(_columns(list(samples)), schema=_schema())
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def join_samples(path: Path, keys: tuple[str, ...], files: Mapping[tuple[str, ...], Path]) -> None:
    """Writes the rows of several files as one, whole or not at all, each with its key in the
    columns ``keys`` in front.

    Raises:
        UserError: the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for key, file in files.items():
        table = pq.read_table(file)
        for place, (name, value) in enumerate(zip(keys, key, strict=True)):
            table = table.add_column(place, name, pa.array([value] * len(table), pa.string()))
        tables.append(table)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(tables), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def read_samples(path: Path) -> list[Sample]:
    """The rows of one file, or of every file below a folder, by stage and step, as written."""
    import pyarrow.parquet as pq

    files = [path] if path.is_file() else sorted(path.rglob("step-*.parquet"))
    rows = (row for file in files for row in pq.read_table(file).to_pylist())
    return [Sample(**{**row, "parts": json.loads(row["parts"])}) for row in rows]


_TYPES = {
    "step": "int64",
    "sample": "int64",
    "tokens": "int64",
    "budget": "int64",
    "thought": "int64",
    "cut": "bool",
    "reward": "double",
    "advantage": "double",
    "staleness": "double",
    "staleness_max": "int64",
}


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    # Written out: a column that is null in a whole file would otherwise lose its type.
    return pa.schema(
        [(f.name, pa.type_for_alias(_TYPES.get(f.name, "string"))) for f in fields(Sample)]
    )


def _columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    columns = {f.name: [_plain(getattr(s, f.name)) for s in samples] for f in fields(Sample)}
    columns["parts"] = [encodable(json.dumps(p, ensure_ascii=False)) for p in columns["parts"]]
    return columns


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
