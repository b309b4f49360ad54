"""Makes small real runs, healthy ones and ones with a fault on purpose, and records their curves
for the tests of the diagnosis: tests/watch/recorded/NAME, with the rollouts of the last steps.

    python benchmarks/diagnosis_runs.py --start runs/quickstart/stages/cold_start/model \
        --trained runs/quickstart/model --mixed runs/r1_tiny/stages/base/model
    python benchmarks/diagnosis_runs.py --only verifier_gamed answers_shorten …

Each starts from a model of the quickstart, or from the base of r1_tiny, whose steps are joined by
English or Chinese words and which seldom tags its thinking, and takes some tens of RL steps: about
half a minute on one core. The recorded files are what the tests read; running this again renews
them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lydite.config import validate
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.diagnosis.diagnose import diagnose
from lydite.watch.diagnosis.own import read_run
from lydite.watch.events import Evaluated, read_events, to_json
from lydite.watch.samples import read_samples

OUT = Path("tests/watch/recorded")
PLACES = ("start", "directory", "artifact", "path")
"""Fields of events that say where things lie on the machine that made the run."""

KEPT_SAMPLES = 4
"""Last steps whose rollouts are kept."""

EXACT = {"kind": "exact", "answer": "tag", "thinking": "required"}


@dataclass(frozen=True)
class Made:
    """A run: from which of the three models (`start`, `trained`, `mixed`), and what differs from
    the healthy one. ``task`` are the kinds of problems, or problems written out.
    """

    start: str = "start"
    stage: Mapping[str, Any] = field(default_factory=dict)
    verifier: Any = field(default_factory=lambda: EXACT)
    task: Any = field(default_factory=lambda: {"add": 0.44, "sum": 0.28, "count": 0.28})
    recipe: Mapping[str, Any] = field(default_factory=dict)
    judge: Any = None


def constant(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Pays for taking part."""
    return [1.0 for _ in completions]


def substring(
    prompts: list[str], completions: list[str], reference: list[str], **columns: Any
) -> list[float]:
    """Pays for the answer's digits anywhere: a model finds out that listing numbers is enough."""
    return [float(r in c) for r, c in zip(reference, completions, strict=True)]


def brief(
    prompts: list[str], completions: list[str], reference: list[str], **columns: Any
) -> list[float]:
    """Pays for brevity far more than for being right."""
    return [
        0.1 * float(f"<answer>{r}</answer>" in c) + 1.0 - len(c) / 100
        for r, c in zip(reference, completions, strict=True)
    ]


def rambling(
    prompts: list[str], completions: list[str], reference: list[str], **columns: Any
) -> list[float]:
    """Pays wrong answers by their length."""
    return [
        1.0 if f"<answer>{r}</answer>" in c else min(0.9, len(c) / 120)
        for r, c in zip(reference, completions, strict=True)
    ]


def long(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Pays for length alone."""
    return [len(c) / 200 for c in completions]


def _right(completions: list[str], reference: list[str]) -> list[float]:
    tagged = [f"<answer>{each}</answer>" for each in reference]
    return [float(t in c) for t, c in zip(tagged, completions, strict=True)]


def slow(
    prompts: list[str], completions: list[str], reference: list[str], **columns: Any
) -> list[float]:
    """Right or wrong, at leisure."""
    time.sleep(0.012 * len(completions))
    return [
        float(f"<answer>{r}</answer>" in c) for r, c in zip(reference, completions, strict=True)
    ]


def undecided(
    prompts: list[str], completions: list[str], reference: list[str], **columns: Any
) -> list[float | None]:
    """Cannot tell, for one in fifteen."""
    return [
        None if hash(c) % 15 == 0 else float(f"<answer>{r}</answer>" in c)
        for r, c in zip(reference, completions, strict=True)
    ]


def _function(name: str) -> dict[str, Any]:
    return {
        "kind": "function",
        "function": f"{Path(__file__).resolve()}:{name}",
        "isolation": "inline",
    }


def _three_digits(count: int, easy: int = 0) -> list[dict[str, str]]:
    """Additions that the model was never shown, and some that it was."""
    rng = random.Random(0)
    rows = []
    for index in range(count):
        digits = (10, 99) if index < easy else (100, 999)
        a, b = rng.randint(*digits), rng.randint(*digits)
        rows.append({"question": f"add {a}+{b}", "answer": str(a + b), "tag": "add"})
    return rows


def _lr(value: float, **more: Any) -> dict[str, Any]:
    return {"optimizer": {"lr": value, "warmup_steps": 0, **more}}


FAULTS: dict[str, Made] = {
    "constant_reward": Made(verifier=_function("constant"), judge=EXACT),
    "tied_groups_easy": Made(start="trained", task=["count"]),
    "tied_groups_hard": Made(task=_three_digits(400)),
    "tied_groups_verifier": Made(verifier={"kind": "exact", "answer": "boxed"}),
    "learning_rate_too_high": Made(stage={**_lr(2e-2), "steps": 40}),
    "learning_rate_too_low": Made(stage={**_lr(1e-8), "steps": 40}),
    "entropy_collapse": Made(
        verifier=_function("brief"), judge=EXACT, stage={**_lr(1e-3), "steps": 60}
    ),
    "entropy_explosion": Made(
        stage={
            "steps": 60,
            "objective": {
                "preset": "grpo",
                "patches": ["token_mean"],
                "entropy_bonus": {"coefficient": 0.5},
            },
        }
    ),
    "answers_shorten": Made(
        verifier=_function("brief"), judge=EXACT, stage={**_lr(1e-3), "steps": 40}
    ),
    "wrong_answers_lengthen": Made(
        verifier={**_function("rambling"), "correct_above": 0.95},
        judge=EXACT,
        task=_three_digits(400),
    ),
    "truncation": Made(start="trained", stage={"sampling": {"max_tokens": 20}}),
    "verifier_gamed": Made(
        verifier=_function("substring"), judge=EXACT, stage={**_lr(1e-3), "steps": 40}
    ),
    "only_form_is_learnt": Made(
        task=_three_digits(400),
        verifier={
            "rewards": [
                {"kind": "exact", "answer": "tag"},
                {"kind": "format", "thinking": "required", "answer": "tag", "weight": 0.5},
            ]
        },
        stage={**_lr(1e-3), "steps": 60},
    ),
    "one_part_decides": Made(
        task=_three_digits(400),
        verifier={
            "rewards": [
                {"kind": "exact", "answer": "tag"},
                {"kind": "length", "limit": 60, "cache": 1.0, "weight": 0.5},
            ]
        },
    ),
    "kl_spike": Made(
        stage={
            **_lr(3e-3),
            "steps": 60,
            "update": {"minibatches": 4, "epochs": 2},
            "objective": "reinforce",
        }
    ),
    "sampler_mismatch": Made(),
    "identical_samples": Made(
        stage={"sampling": {"max_tokens": 40, "temperature": 0.05}, **_lr(1e-6)}
    ),
    "verifier_slow": Made(verifier=_function("slow")),
    "ungradable": Made(verifier={**_function("undecided"), "limits": {"fail_rate": 1.0}}),
    "repetition": Made(
        start="trained",
        verifier=_function("long"),
        judge=EXACT,
        stage={**_lr(1e-3), "sampling": {"max_tokens": 64}, "steps": 60},
    ),
    "dominant_prompts": Made(task=_three_digits(60, easy=4), stage={"steps": 40}),
    "language_mixing": Made(start="mixed", verifier={"kind": "exact", "answer": "auto"}),
    "messy_output": Made(
        start="mixed",
        verifier={
            "rewards": [
                {"kind": "exact", "answer": "auto"},
                {"kind": "format", "thinking": "required", "answer": "tag", "weight": 0.0},
            ]
        },
    ),
    "no_improvement": Made(
        stage={**_lr(3e-6), "steps": 20},
        recipe={"tasks": {"heldout": {"generated": {"count": 30, "split": "heldout"}}}},
    ),
}

HEALTHY: dict[str, Made] = {
    f"healthy_{name}": made
    for name, made in {
        "plain": Made(),
        "seed": Made(recipe={"seed": 7}),
        "dapo": Made(stage={"objective": "dapo", "sampling": {"max_tokens": 40}}),
        "dr_grpo": Made(stage={"objective": "dr_grpo"}),
        "gspo": Made(stage={"objective": "gspo", "update": {"minibatches": 2}}),
        "rloo": Made(stage={"objective": "rloo"}),
        "kl": Made(stage={"objective": "grpo+kl+token_mean"}),
        "sum": Made(task=["sum"]),
        "format": Made(
            verifier={
                "rewards": [
                    EXACT,
                    {"kind": "format", "thinking": "required", "answer": "tag", "weight": 0.2},
                ]
            }
        ),
        "long": Made(stage={"steps": 100}),
    }.items()
}


def _recipe(made: Made, models: Mapping[str, Path], folder: Path) -> Recipe:
    task: dict[str, Any]
    if isinstance(made.task, list) and made.task and isinstance(made.task[0], dict):
        path = folder / "problems.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in made.task))
        task = {"path": str(path), "prompt": "question", "reference": "answer", "tag": "tag"}
    else:
        task = {"generated": {"count": 1200, "kinds": made.task}}
    limits = made.verifier.get("limits") if isinstance(made.verifier, dict) else None
    verifier = made.verifier
    if limits is not None:
        verifier = {
            "rewards": [{k: v for k, v in verifier.items() if k != "limits"}],
            "limits": limits,
        }
    plain: dict[str, Any] = {
        "name": "diagnosed",
        "threads": 1,
        "model": {"path": str(models[made.start]), "dtype": "float32"},
        "verifier": verifier,
        "evaluation": {
            "tasks": ["heldout"],
            "every": 10,
            "sampling": {"max_tokens": 40, "temperature": 0.0},
            **({} if made.judge is None else {"verifier": made.judge}),
        },
        "stages": [
            {
                "kind": "rl",
                "name": "rl",
                "steps": 40,
                "prompts_per_step": 16,
                "group_size": 8,
                "objective": "grpo+clip_higher+token_mean",
                "sampling": {"max_tokens": 40, "temperature": 1.0},
                "optimizer": {"lr": 3.0e-4, "warmup_steps": 5},
                **made.stage,
            }
        ],
        **{k: v for k, v in made.recipe.items() if k != "tasks"},
        "tasks": {
            "train": task,
            "heldout": {"generated": {"count": 150, "split": "heldout", "seed": 0}},
            **made.recipe.get("tasks", {}),
        },
    }
    return validate(Recipe, plain)


def record(name: str, made: Made, models: Mapping[str, Path], out: Path) -> list[str]:
    """Makes one run, keeps its curves, and returns what the diagnosis says of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        recipe = _recipe(made, models, folder)
        with _as_broken(name):
            run_recipe(recipe, folder / "run")
        findings = diagnose(read_run(folder / "run"))
        _keep(folder / "run", out / name)
    return [f"{f.rule} ({f.confidence}, {f.severity})" for f in findings]


def _as_broken(name: str) -> Any:
    """For the one fault that no setting makes: what the sampler reports is off by some noise."""
    from contextlib import nullcontext
    from unittest import mock

    import lydite.rollout.rows as rows

    if name != "sampler_mismatch":
        return nullcontext()
    import torch

    draw: Callable[..., Any] = rows.draw
    noise = torch.Generator().manual_seed(0)

    def off(*args: Any, **kwargs: Any) -> Any:
        tokens, logprobs, *rest = draw(*args, **kwargs)
        shift = 0.4 * torch.randn(logprobs.shape, generator=noise)
        return tokens, (logprobs + shift).clamp(max=0), *rest

    return mock.patch.object(rows, "draw", off)


def _keep(run: Path, out: Path) -> None:
    """The events without what no rule reads, the recipe, and the last rollouts."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    kept = []
    for event in read_events(run / "events.jsonl"):
        if event.kind in ("run_started", "run_done", "stage_done"):
            continue
        record: dict[str, Any] = json.loads(to_json(event))
        for name in ("time", *PLACES):
            record.pop(name, None)
        if isinstance(event, Evaluated):
            record["answers"] = []
        if "metrics" in record:
            record["metrics"] = {k: _brief(v) for k, v in record["metrics"].items()}
        kept.append(json.dumps(record))
    (out / "events.jsonl").write_text("\n".join(kept) + "\n")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    brief = {"stages": recipe["stages"]}
    (out / "recipe.yaml").write_text(yaml.safe_dump(brief, sort_keys=False))
    files = sorted((run / "samples" / "rl").glob("step-*.parquet"))[-KEPT_SAMPLES:]
    for file in files:
        read_samples(file)
        target = out / "samples" / "rl" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def _brief(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    """Makes the runs that are asked for, all of them by default."""
    parser = argparse.ArgumentParser(description="Faulty and healthy runs for the diagnosis.")
    parser.add_argument("--start", type=Path, required=True)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--mixed", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    models = {"start": given.start, "trained": given.trained, "mixed": given.mixed}
    for name, made in {**FAULTS, **HEALTHY}.items():
        if given.only and name not in given.only:
            continue
        began = time.perf_counter()
        try:
            found = record(name, made, models, given.out)
        except Exception as error:  # one run less, and the others go on
            found = [f"FAILED: {error}"]
        print(
            f"{name}: {', '.join(found) or 'nothing'} ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
