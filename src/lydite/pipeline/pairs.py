"""Where the pairs of a preference stage come from, and where they are kept: ``pairs.parquet`` in
the stage's folder, one row a pair, with where each answer was taken from.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from lydite.config import Config, UserError
from lydite.model.policy import Policy
from lydite.model.render import completion_ids, render_prompt
from lydite.pipeline.mining import Candidate, ChoiceConfig, Chosen, Mined, mine
from lydite.train.answers import sample_and_verify
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.preference import Pair
from lydite.train.scored import check_failures
from lydite.types import Completion, Engine, Group, Outcome, Problem, Request, Verifier
from lydite.watch.files import encodable, write_atomic
from lydite.watch.samples import read_samples, samples_of, write_samples

CUT = "answers that a thinking budget cut"
"""What is injected is nothing that the model said, and a pair has no mask to leave it out."""


class TaskPairs(Config):
    """The pairs that the task has: its columns `worked` and `rejected`."""

    kind: Literal["task"]


class StagePairs(ChoiceConfig):
    """Mined from the rollouts that an earlier stage left in its run's folder."""

    kind: Literal["stage"]
    stage: str = Field(description="Stage whose rollouts are taken, trained on the same task.")
    run: str | None = Field(
        None, description="Folder of another run that the stage is in; this run's when null."
    )
    from_step: int = Field(
        0, ge=0, description="Take rollouts from this step on: later ones are nearer to the policy."
    )


class SampledPairs(ChoiceConfig):
    """Mined from answers that the stage's starting model gives before it is trained."""

    kind: Literal["sampled"]
    samples: int = Field(8, ge=2, description="Completions per problem.")
    sampling: SamplingConfig = Field(SamplingConfig(), description="How completions are drawn.")

    @model_validator(mode="after")
    def _varied(self) -> Self:
        if self.sampling.temperature == 0:
            raise ValueError(
                "sampling.temperature: 0 draws the same completion every time, which makes no "
                "pair; give a number above 0, 1 as a rule"
            )
        return self


PairsConfig = TaskPairs | StagePairs | SampledPairs


def rollout_files(stage: str, pairs: StagePairs, samples: Path) -> list[Path]:
    """The files of rollouts that stage ``stage`` mines; ``samples`` is the folder of this run's.

    Raises:
        UserError: there are none.
    """
    folder = (samples if pairs.run is None else Path(pairs.run) / "samples") / pairs.stage
    files = sorted(folder.glob("step-*.parquet"))
    if not files:
        raise UserError(
            f"stages.{stage}.pairs: no rollouts in {folder}; name a stage that samples, such as "
            "rl, and the folder of its run if that is another"
        )
    return files


def rollouts_fingerprint(files: Sequence[Path]) -> str:
    """SHA-256, in hex, of the names and contents of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def task_pairs(policy: Policy, problems: Sequence[Problem]) -> Mined:
    """The pairs that problems have. Two answers that are the same are dropped."""
    pairs = []
    dropped: Counter[str] = Counter()
    for problem in problems:
        both = [
            Candidate(text, completion_ids(policy, problem, text), outcome, True, column)
            for text, outcome, column in (
                (problem.worked or "", Outcome.CORRECT, "worked"),
                (problem.rejected or "", Outcome.WRONG, "rejected"),
            )
        ]
        if both[0].token_ids == both[1].token_ids:
            dropped["pairs of two equal answers"] += 1
        else:
            pairs.append(Chosen(problem.id, *both))
    return Mined(tuple(pairs), dict(dropped))


def stage_pairs(
    policy: Policy,
    problems: Sequence[Problem],
    pairs: StagePairs,
    files: Sequence[Path],
    seed: int,
) -> Mined:
    """Pairs of a stage's rollouts. They are kept as text, so answers are encoded again here."""
    known = {problem.id: problem for problem in problems}
    answers: dict[str, list[Candidate]] = {problem.id: [] for problem in problems}
    dropped: Counter[str] = Counter()
    room = {
        problem.id: policy.context - len(render_prompt(policy, problem)) for problem in problems
    }
    for row in (row for file in files for row in read_samples(file)):
        if row.step < pairs.from_step:
            dropped["answers before from_step"] += 1
            continue
        if row.problem_id not in known:
            dropped["answers to problems that are not in the task"] += 1
            continue
        if row.cut:
            dropped[CUT] += 1
            continue
        finished = row.finish != "length"
        try:
            ids = completion_ids(policy, known[row.problem_id], row.completion, finished)
        except UserError:
            dropped["answers that the tokenizer has no tokens for"] += 1
            continue
        if len(ids) > room[row.problem_id]:
            dropped["answers too long for the context"] += 1
            continue
        place = f"{pairs.stage} step {row.step} sample {row.sample}"
        found = Candidate(row.completion, ids, Outcome(row.outcome), finished, place)
        answers[row.problem_id].append(found)
    mined = mine(answers, pairs, seed)
    return Mined(mined.pairs, {**dropped, **mined.dropped})


def sampled_pairs(
    prompts: Sequence[Prompt],
    parts: tuple[Engine, Verifier],
    pairs: SampledPairs,
    place: tuple[Path, str, int],
    seed: int,
    fail_rate: float,
) -> Mined:
    """Pairs of what the model answers now. ``place`` is the run's folder of samples, where every
    answer goes, the stage's name, and the step that addresses the noise.

    Raises:
        UserError: more verdicts than ``fail_rate`` allows could not be decided.
    """
    engine, verifier = parts
    samples, stage, step = place
    params = pairs.sampling.params()
    problems = [prompt.problem for prompt in prompts]
    completions, verdicts = sample_and_verify(
        engine,
        verifier,
        problems,
        [Request(p.problem.id, p.token_ids, pairs.samples, params, step) for p in prompts],
    )
    check_failures([v for group in verdicts for v in group], fail_rate)
    groups = [Group(*parts) for parts in zip(problems, completions, verdicts, strict=True)]
    nothing = [float("nan")] * pairs.samples
    rows = [row for group in groups for row in samples_of(group, nothing, 0)]
    write_samples(samples, stage, 0, rows)
    answers = {
        group.problem.id: [
            Candidate(
                c.text, c.token_ids, v.outcome, c.finish != "length", f"{stage} sample {c.sample}"
            )
            for c, v in zip(group.completions, group.verdicts, strict=True)
            if not _cut(c)
        ]
        for group in groups
    }
    mined = mine(answers, pairs, seed)
    cut = sum(_cut(c) for group in groups for c in group.completions)
    return Mined(mined.pairs, {**mined.dropped, **({CUT: cut} if cut else {})})


def _cut(completion: Completion) -> bool:
    return completion.thought is not None and completion.thought.cut


def as_tokens(mined: Mined, prompts: Sequence[Prompt]) -> list[Pair]:
    """The pairs as the trainer takes them."""
    ids = {prompt.problem.id: prompt.token_ids for prompt in prompts}
    return [
        Pair(ids[pair.problem_id], pair.better.token_ids, pair.worse.token_ids)
        for pair in mined.pairs
    ]


def save_pairs(path: Path, mined: Mined, lineage: str) -> None:
    """Writes pairs as Parquet, whole or not at all; ``lineage`` is the stage's fingerprint."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "problem_id": pair.problem_id,
            **{
                f"{side}_{name}" if name else side: value
                for side, answer in (("chosen", pair.better), ("rejected", pair.worse))
                for name, value in _columns(answer).items()
            },
        }
        for pair in mined.pairs
    ]
    table = pa.Table.from_pylist(rows).replace_schema_metadata(
        {"lineage": lineage, "dropped": json.dumps(dict(mined.dropped))}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_atomic(path, sink.getvalue().to_pybytes())


def load_pairs(path: Path, lineage: str) -> Mined | None:
    """What :func:`save_pairs` wrote for the same lineage, or None."""
    import pyarrow.parquet as pq

    if not path.is_file():
        return None
    table = pq.read_table(path)
    metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
    if metadata.get(b"lineage") != lineage.encode():
        return None
    pairs = tuple(
        Chosen(row["problem_id"], _candidate(row, "chosen"), _candidate(row, "rejected"))
        for row in table.to_pylist()
    )
    return Mined(pairs, json.loads(metadata[b"dropped"]))


def _columns(answer: Candidate) -> dict[str, object]:
    return {
        "": encodable(answer.text),
        "ids": list(answer.token_ids),
        "outcome": str(answer.outcome),
        "finished": answer.finished,
        "source": answer.source,
    }


def _candidate(row: Mapping[str, object], side: str) -> Candidate:
    ids = row[f"{side}_ids"]
    assert isinstance(ids, list)
    return Candidate(
        str(row[side]),
        tuple(ids),
        Outcome(str(row[f"{side}_outcome"])),
        bool(row[f"{side}_finished"]),
        str(row[f"{side}_source"]),
    )
