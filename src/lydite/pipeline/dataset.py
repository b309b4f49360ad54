"""The dataset that rejection sampling leaves: one Parquet file, a row for each completion kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lydite.config import UserError
from lydite.tasks.task import RowsConfig, TaskData, select
from lydite.train.filters import Filtered
from lydite.types import Problem
from lydite.watch.files import encodable, write_atomic

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where every row comes from: the stage, the fingerprint of its model, and the run's seed."""

    stage: str
    model: str
    seed: int


def report_of(filtered: Filtered) -> dict[str, Any]:
    """What each filter dropped, in order, and what was left, as the artifact records it."""
    return {
        "sampled": filtered.sampled,
        "dropped": dict(filtered.dropped),
        "kept": len(filtered.kept),
        "problems": len({sample.problem_id for sample in filtered.kept}),
    }


def write_dataset(
    path: Path, problems: Sequence[Problem], filtered: Filtered, source: Provenance
) -> None:
    """Writes the file whole or not at all. Equal input gives an equal file, byte by byte.

    A row has ``id``, ``problem_id``, ``sample``, ``prompt`` (a list of chat messages),
    ``question``, ``reference``, ``tag``, ``completion``, ``answer``, ``reward``, ``outcome``,
    ``parts`` (JSON), ``tokens``, ``stage``, ``model`` and ``seed``; the file's metadata has the
    filters' report.

    Raises:
        UserError: nothing was kept, or the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    report = report_of(filtered)
    if not filtered.kept:
        counts = ", ".join(f"{name} {count}" for name, count in filtered.dropped.items() if count)
        raise UserError(
            f"stages.{source.stage}.filters: none of {filtered.sampled} completions was kept "
            f"(dropped: {counts}); loosen the filters, draw more samples, or train the model "
            "further first"
        )
    by_id = {problem.id: problem for problem in problems}
    rows = []
    for sample in filtered.kept:
        problem = by_id[sample.problem_id]
        rows.append(
            {
                "id": f"{problem.id}:{sample.sample}",
                "problem_id": problem.id,
                "sample": sample.sample,
                "prompt": [{"role": m.role, "content": m.content} for m in problem.messages],
                "question": problem.question,
                "reference": problem.reference,
                "tag": problem.tag,
                "completion": sample.completion,
                "answer": None if sample.answer is None else encodable(sample.answer),
                "reward": sample.reward,
                "outcome": sample.outcome,
                "parts": json.dumps(dict(sample.parts), ensure_ascii=False),
                "tokens": sample.tokens,
                "stage": source.stage,
                "model": source.model,
                "seed": source.seed,
            }
        )
    schema = _schema().with_metadata({"lydite": json.dumps(report)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    types: Mapping[str, Any] = {"prompt": pa.list_(turn), "reward": pa.float64()}
    types = {**types, **dict.fromkeys(("sample", "tokens", "seed"), pa.int64())}
    names = (
        "id problem_id sample prompt question reference tag completion answer reward outcome parts "
        "tokens stage model seed"
    )
    return pa.schema([(name, types.get(name, pa.string())) for name in names.split()])


def read_dataset(
    name: str, config: RowsConfig, path: Path, problems: Sequence[Problem]
) -> TaskData:
    """The problems behind a dataset's rows, each with a kept completion as its worked solution.

    Raises:
        UserError: the file cannot be read, or is of other problems.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    by_id = {problem.id: problem for problem in problems}
    try:
        rows = pq.read_table(path, columns=["id", "problem_id", "completion"]).to_pylist()
        found = [
            replace(by_id[row["problem_id"]], id=row["id"], worked=row["completion"])
            for row in rows
        ]
    except (OSError, pa.ArrowException, KeyError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"tasks.{name}.from_stage: cannot read {path}: {reason}; delete the stage's folder "
            "to make it again"
        ) from error
    return select(name, config, found, [])
