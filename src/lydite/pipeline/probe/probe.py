"""The probe itself: samples, verifies, and writes what it found."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lydite.config import UserError, differences
from lydite.model.loading import load_policy
from lydite.model.policy import Policy
from lydite.model.render import render_prompt
from lydite.pipeline.folder import write_json
from lydite.pipeline.probe import picture
from lydite.pipeline.probe.filtered import (
    FILTERED,
    as_yaml,
    filtered_rows,
    overrides_of,
    write_filtered,
)
from lydite.pipeline.probe.findings import Findings, findings
from lydite.pipeline.probe.record import Record, RecordedEngine, Tell
from lydite.pipeline.probe.report import as_json, as_markdown
from lydite.pipeline.probe.subject import Subject
from lydite.rollout.select import engine_of
from lydite.train.evaluate import Evaluation, Prompt, evaluate
from lydite.verify.verifier import build
from lydite.watch.samples import write_sample_file

BASIS, COMPLETIONS, SAMPLES = "basis.json", "completions.jsonl", "answers.parquet"
REPORT, JSON, OVERRIDES, PICTURE = "report.md", "probe.json", "overrides.yaml", "probe.png"


@dataclass(frozen=True, slots=True)
class Probed:
    """What was found and written: the report's text, everything as JSON, and files by what they
    are.
    """

    findings: Findings
    text: str
    values: dict[str, Any]
    files: dict[str, Path]


def probe(
    subject: Subject,
    out: Path,
    samples: int,
    tell: Tell,
    command: Sequence[str] = ("lydite", "run"),
) -> Probed:
    """Samples ``samples`` answers to every problem, as the stage would, and says what they show.

    What an earlier call has sampled into ``out`` is not sampled again. ``command`` is how the
    recipe is run, without the recommended overrides.

    Raises:
        UserError: the folder holds a probe of something else, the model cannot be loaded, a prompt
            does not fit, or nothing could be judged.
    """
    recipe, stage = subject.recipe, subject.stage
    _check_free(subject, out)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    policy = load_policy(subject.model, subject.device, recipe.seed)
    stage.fit(policy, subject.problems)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / BASIS, dict(subject.basis))
    found = _answers(subject, policy, out, samples, tell)
    write_sample_file(out / SAMPLES, found.samples(0))
    said = findings(subject, policy, found)
    changed = overrides_of(subject, said, out / FILTERED)
    about = f"what `lydite probe` recommends for stage {stage.name} of {recipe.name}"
    (out / OVERRIDES).write_text(as_yaml(changed, about), encoding="utf-8")
    write_filtered(out / FILTERED, filtered_rows(subject, said))
    drawn = picture.can_draw()
    if drawn:
        title = f"{recipe.name}, stage {stage.name}: before training"
        picture.save(said, title, stage.sampling.max_tokens, out / PICTURE)
    with_overrides = shlex.join([*command, f"@{out / OVERRIDES}"])
    text = as_markdown(subject, said, changed, with_overrides, PICTURE if drawn else "")
    (out / REPORT).write_text(text, encoding="utf-8")
    values = as_json(subject, said, changed)
    write_json(out / JSON, values)
    files = {
        "report": out / REPORT,
        **({"picture": out / PICTURE} if drawn else {}),
        "overrides": out / OVERRIDES,
        "filtered problems": out / FILTERED,
        "answers": out / SAMPLES,
        "everything as JSON": out / JSON,
    }
    return Probed(said, text, values, files)


def _check_free(subject: Subject, out: Path) -> None:
    """Whether a folder is empty, or this probe's. Raises ``UserError``."""
    path = out / BASIS
    basis = json.loads(json.dumps(dict(subject.basis)))
    if path.is_file():
        other = differences(json.loads(path.read_text(encoding="utf-8")), basis)
        if other:
            raise UserError(
                f"--out {out}: there is a probe of something else (then, now: {other[0]}); choose "
                "another folder, or remove that one"
            )
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: there is something else; choose another folder")


def _answers(subject: Subject, policy: Policy, out: Path, samples: int, tell: Tell) -> Evaluation:
    recipe, stage = subject.recipe, subject.stage
    verifier = build(subject.verifier, list(subject.problems))
    prompts = [Prompt(p, render_prompt(policy, p)) for p in subject.problems]
    engine = engine_of(policy, recipe.engine, recipe.seed)
    try:
        with Record(out / COMPLETIONS) as record:
            recorded = RecordedEngine(engine, record, tell)
            params = stage.sampling.params()
            return evaluate(stage.task, prompts, recorded, verifier, params, samples)
    finally:
        verifier.close()
