"""Other trainers' logs as curves: TRL's ``trainer_state.json``, verl's JSON lines, any JSON lines
or CSV with a column for each figure, and TensorBoard's event files.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lydite.config import UserError
from lydite.watch.diagnosis.curves import Curves
from lydite.watch.events import Evaluated

MOST_BYTES = 512 << 20
STEPS = ("step", "global_step", "_step", "train/global_step", "training/global_step", "iteration")


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of ours and what others call it, as a pattern of the whole name; ``rest`` where
    theirs is 1 less ours.
    """

    ours: str
    theirs: str
    rest: bool = False


COLUMNS = (
    Column("reward", r"reward|critic/(rewards|score)/mean|rewards?/mean|mean_reward|reward_mean"),
    Column("accuracy", r"accuracy|acc|.*/acc(uracy)?/mean|rewards/accuracy_reward(/mean)?"),
    Column("reward_std", r"reward_std|critic/(rewards|score)/std"),
    Column("informative_groups", r"frac_reward_zero_std|zero_std_ratio", rest=True),
    Column("length", r"completions?/mean_length|completion_length|response_length/mean|length"),
    Column("truncated", r"completions?/clipped_ratio|response_length/clip_ratio|truncated.*"),
    Column("prompts_cut", r"prompt_length/clip_ratio"),
    Column("entropy", r"entropy|actor/entropy(_loss)?|policy/entropy(_avg)?"),
    Column("kl_reference", r"kl|actor/kl_loss|objective/kl|kl_ref.*"),
    Column("kl_old", r"actor/ppo_kl|policy/approxkl_avg|approx_kl"),
    Column("clip_low", r"clip_ratio/low_mean|actor/pg_clipfrac_lower"),
    Column("clip_high", r"clip_ratio/high_mean|actor/pg_clipfrac"),
    Column(
        "kl_behaviour",
        r"rollout_corr/k3_kl|mismatch/k3_kl|sampling/k3_kl|training/rollout_k3_kl",
    ),
    Column("mismatch_ess", r"rollout_corr/rollout_is_eff_sample_size|mismatch/.*eff_sample_size"),
    Column("loss", r"loss|actor/pg_loss|policy_loss"),
    Column("grad_norm", r"grad_norm|actor/grad_norm"),
    Column("lr", r"learning_rate|lr|actor/lr"),
    Column("seconds", r"step_time|timing_s/step|seconds"),
    Column("seconds_verify", r"timing_s/reward|reward_time"),
)
PART = re.compile(r"rewards/(?P<name>.+?)/mean")
HELD_OUT = re.compile(
    r"eval[_/](?P<name>reward|accuracy|rewards/.+/mean)|val-core/(?P<set>.+)|val/(?P<test>.+)"
)

Row = Mapping[str, float]


def renamed(pairs: Iterable[str]) -> dict[str, str]:
    """``OURS=THEIRS`` as given to ``--map``, by name of ours. Raises ``UserError``."""
    found = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise UserError(f"--map {pair}: write OURS=THEIRS, such as reward=my/score")
        found[ours] = theirs
    return found


def read_log(path: Path, renamed: Mapping[str, str] | None = None) -> list[Curves]:
    """A log as one stage. ``renamed`` says for names of ours what the log calls them.

    Raises:
        UserError: the file cannot be read as any of the forms, holds no step, or lacks a column
            that ``renamed`` names.
    """
    rows = _rows(path)
    if not rows:
        raise UserError(
            f"{path}: holds no figures by step; give a trainer_state.json, JSON lines, CSV or a "
            "folder of TensorBoard event files"
        )
    return [as_curves(rows, path.stem, renamed or {})]


def as_curves(rows: Sequence[Row], name: str, renamed: Mapping[str, str]) -> Curves:
    """Rows of figures, each with its ``step``, as one RL stage.

    Raises:
        UserError: a column that ``renamed`` names is in no row.
    """
    columns = dict.fromkeys(column for row in rows for column in row)
    for ours, theirs in renamed.items():
        if theirs not in columns:
            shown = ", ".join(list(columns)[:12])
            raise UserError(f"--map {ours}={theirs}: the log has no {theirs!r}; it has {shown}")
    taken = {**_known(columns), **{ours: (theirs, False) for ours, theirs in renamed.items()}}
    merged: dict[int, dict[str, float]] = {}
    for row in rows:
        merged.setdefault(int(row["step"]), {}).update(row)
    steps = sorted(s for s, row in merged.items() if any(t in row for t, _ in taken.values()))
    metrics = {
        ours: tuple(_value(merged[step], theirs, rest) for step in steps)
        for ours, (theirs, rest) in taken.items()
    }
    return Curves(name, "rl", tuple(steps), metrics, _held_out(merged))


def _value(row: Row, column: str, rest: bool) -> float:
    value = row.get(column, math.nan)
    return 1 - value if rest else value


def _known(columns: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Names of ours → their column, and whether it is the rest to 1. The first that fits."""
    found: dict[str, tuple[str, bool]] = {}
    for name in columns:
        for column in COLUMNS:
            if column.ours not in found and re.fullmatch(column.theirs, name):
                found[column.ours] = (name, column.rest)
        part = PART.fullmatch(name)
        if part is not None:
            found.setdefault(f"reward_{part['name']}", (name, False))
    return found


def _held_out(rows: Mapping[int, Row]) -> dict[str, tuple[Evaluated, ...]]:
    found: dict[str, list[Evaluated]] = {}
    for step, row in sorted(rows.items()):
        for name, value in row.items():
            if HELD_OUT.fullmatch(name) and math.isfinite(value):
                found.setdefault(name, []).append(Evaluated(task=name, step=step, avg=value))
    return {task: tuple(each) for task, each in found.items()}


def _rows(path: Path) -> list[dict[str, float]]:
    if path.is_dir():
        state = next(iter(sorted(path.glob("**/trainer_state.json"), key=_number)[::-1]), None)
        return _rows(state) if state is not None else _tensorboard(path)
    if not path.is_file():
        raise UserError(f"{path}: is neither a run, nor a file, nor a folder of logs")
    if "tfevents" in path.name:
        return _tensorboard(path)
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"{path}: is larger than {MOST_BYTES >> 20} MiB; cut it")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            return _numbers(csv.DictReader(text.splitlines()))
        if path.suffix == ".json":
            return _numbers(_history(json.loads(text)))
        return _numbers(_flat(json.loads(line)) for line in text.splitlines() if line.strip())
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: cannot be read as a log: {reason}") from error


def _number(path: Path) -> tuple[int, str]:
    """Checkpoints by their number: the last has the whole history."""
    digits = re.findall(r"\d+", path.parent.name)
    return (int(digits[-1]) if digits else 0, str(path))


def _history(state: Any) -> list[Mapping[str, Any]]:
    """TRL's and Transformers' state, or a plain list of records."""
    rows = state.get("log_history") if isinstance(state, dict) else state
    if not isinstance(rows, list):
        raise ValueError("it has no log_history and is no list of records")
    return [_flat(row) for row in rows]


def _flat(record: Any) -> dict[str, Any]:
    """A record whose figures may lie one level down (verl's ``data``)."""
    if not isinstance(record, dict):
        raise ValueError("a line is no JSON object")
    inner = [value for value in record.values() if isinstance(value, dict)]
    return {**{k: v for k, v in record.items() if not isinstance(v, dict)}, **_joined(inner)}


def _joined(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for record in records for key, value in record.items()}


def _numbers(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """What is a number in each row; a row without a step takes its place."""
    found = []
    for place, row in enumerate(rows, 1):
        figures: dict[str, float] = {}
        for name, value in row.items():
            if name is None or isinstance(value, bool) or value in (None, ""):
                continue
            try:
                figures[str(name)] = float(value)
            except (TypeError, ValueError):
                continue
        step = next((figures[name] for name in STEPS if name in figures), float(place))
        if figures and math.isfinite(step):
            found.append({**figures, "step": step})
    return found


def _tensorboard(path: Path) -> list[dict[str, float]]:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise UserError(
            f"{path}: TensorBoard's files need it installed: pip install 'lydite[tensorboard]'"
        ) from error
    files = [path] if path.is_file() else sorted({f.parent for f in path.rglob("*tfevents*")})
    rows = []
    for file in files:
        events = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        series = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
        for tag in tags["tensors"]:  # a number as newer writers put it
            arrays = [(e.step, make_ndarray(e.tensor_proto)) for e in events.Tensors(tag)]
            if all(array.size == 1 and array.dtype.kind in "fiu" for _, array in arrays):
                series[tag] = [(step, array.item()) for step, array in arrays]
        for tag, points in series.items():
            bare = tag.removeprefix("train/")
            name = f"eval_{tag.removeprefix('eval/')}" if tag.startswith("eval/") else bare
            rows += [{"step": float(step), name: float(value)} for step, value in points]
    return rows
