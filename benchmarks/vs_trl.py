"""A step of GRPO by TRL's trainer and by Lydite, in turns, on the same work.

    python benchmarks/vs_trl.py --mawps 'DATA/mawps_*.jsonl' --gsm8k DATA/gsm8k_train.jsonl
        [--settings quickstart short long] [--dtypes float32 bfloat16] [--lengths equal natural]
        [--pairs 5] [--quick] [--threads N] [--json FILE] [--plot PNG]

Needs TRL (``pip install 'lydite[parity]'``) and, but for the quickstart's model, SmolLM2-135M
(``make smollm2``). Each side is a process of its own that keeps its model; one step of one, then
one of the other. The first pair warms up and is not counted. Ratios are taken pair by pair, of
seconds by the clock and of seconds of the processor: on a shared machine trust the second.

Equal lengths: every completion runs to its limit (TRL is forbidden the end-of-text token, Lydite
ignores it). Natural lengths: a completion may end earlier.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contenders import Job, Turn
from workloads import SETTINGS, SMOLLM2, Setting, load

TRL: dict[str, Any] = {
    # Its defaults recompute activations and run in mixed precision, which casts weights all the
    # time; both cost time. Weights are in the type that is compared.
    "gradient_checkpointing": False,
    "bf16": False,
    "optim": "adamw_torch_fused",
}
TRL_ROWS = 8
"""Completions of SmolLM2 that TRL trains on at once. All 32 of the setting ``short`` took it more
than 11 GB: it holds the logits of a micro-batch several times.
"""
SHOTS = 3
"""Worked examples before a GSM8K question: about 500 tokens in all."""


def prompts_of(setting: str, args: argparse.Namespace, tokenizer: Any, count: int) -> list[str]:
    """Texts that both sides tokenize themselves."""
    if setting == "quickstart":
        from lydite.tasks.generated import generate

        problems = generate(["add", "sum", "count"], count, seed=3, split="train")
        return [problem.question for problem in problems]
    if setting == "short":
        paths = sorted(glob.glob(args.mawps))
        rows = [row for path in paths for row in lines_of(path)]
        near = sorted(rows, key=lambda row: (abs(len(row["input"]) - 120), row["input"]))
        return [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": row["input"]}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for row in near[:count]
        ]
    rows = lines_of(args.gsm8k)
    shots = "".join(f"Question: {r['question']}\nAnswer: {r['answer']}\n\n" for r in rows[:SHOTS])
    return [shots + f"Question: {r['question']}\nAnswer:" for r in rows[SHOTS : SHOTS + count]]


def accumulated(size: Setting) -> dict[str, int]:
    """How TRL cuts a step into micro-batches."""
    rows = size.prompts * size.group
    at_once = rows if size.model == "quickstart" else TRL_ROWS
    return {"per_device_train_batch_size": at_once, "gradient_accumulation_steps": rows // at_once}


def lines_of(path: str) -> list[dict[str, Any]]:
    """Rows of a JSONL file."""
    text = Path(path).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


class Contender:
    """A process that takes a step when it is told to."""

    def __init__(self, name: str, job: Path, threads: int) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("contenders.py")), name, str(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            },
        )
        self._read()

    def step(self) -> Turn:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Turn(**json.loads(self._read()))

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            code = self._process.wait()
            raise SystemExit(f"a contender ended early ({code}):\n{self._said.read()[-2000:]}")
        return line

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def compare(job: Job, folder: Path, args: argparse.Namespace) -> dict[str, list[Turn]]:
    """``pairs`` steps of each, in turns."""
    path = folder / "job.json"
    path.write_text(job.as_json(), encoding="utf-8")
    sides = {name: Contender(name, path, args.threads) for name in ("trl", "lydite")}
    found: dict[str, list[Turn]] = {name: [] for name in sides}
    try:
        for _ in range(args.pairs + 1):
            for name, side in sides.items():
                found[name].append(side.step())
    finally:
        for side in sides.values():
            side.close()
    return {name: turns[1:] for name, turns in found.items()}


def summary(found: dict[str, list[Turn]]) -> dict[str, Any]:
    """Medians and ranges of each side, and the ratios pair by pair."""
    rows: dict[str, Any] = {}
    for name, turns in found.items():
        rows[name] = {
            "seconds": spread([t.seconds for t in turns]),
            "processor_seconds": spread([t.cpu for t in turns]),
            "sampling_seconds": spread([t.sampling for t in turns]),
            "sampled_tokens_per_second": spread([t.tokens / t.sampling for t in turns]),
            "trained_tokens_per_second": spread(
                [t.tokens / max(t.seconds - t.sampling, 1e-9) for t in turns]
            ),
            "tokens": spread([t.tokens for t in turns]),
            "peak_memory": max(t.memory for t in turns),
            "loaded_memory": turns[-1].loaded,
        }
    pairs = list(zip(found["trl"], found["lydite"], strict=True))
    return {
        **rows,
        "ratio": spread([a.seconds / b.seconds for a, b in pairs]),
        "processor_ratio": spread([a.cpu / b.cpu for a, b in pairs]),
        "pairs": [a.seconds / b.seconds for a, b in pairs],
        "memory_share": rows["lydite"]["peak_memory"] / rows["trl"]["peak_memory"],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def shown(name: str, found: dict[str, Any]) -> str:
    """A line of Markdown."""

    def of(values: dict[str, float]) -> str:
        return f"{values['median']:.3g} ({values['low']:.3g}–{values['high']:.3g})"

    sides = [found["trl"], found["lydite"]]
    cells = [name]
    for field in ("seconds", "processor_seconds"):
        cells.append(" / ".join(of(side[field]) for side in sides))
    for field in ("sampled_tokens_per_second", "trained_tokens_per_second", "tokens"):
        cells.append(" / ".join(f"{side[field]['median']:.0f}" for side in sides))
    cells.append(" / ".join(f"{side['peak_memory'] / 2**30:.2f}" for side in sides))
    cells += [of(found["ratio"]), of(found["processor_ratio"]), f"{found['memory_share']:.0%}"]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| setting, TRL / Lydite | s per step | processor s | sampled tok/s | trained tok/s | tokens | "
    "peak GiB | ratio | processor ratio | memory |\n|" + "---|" * 10
)


def run(setting: str, dtype: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Both lengths of a setting, its model prepared once."""
    import torch

    from lydite.model.saving import save_policy

    size, found = SETTINGS[setting], []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        policy = load(size.model, getattr(torch, dtype), args.smollm2)
        save_policy(policy, model)
        prompts = prompts_of(setting, args, policy.tokenizer, size.prompts)
        lengths = [len(policy.tokenizer(text)["input_ids"]) for text in prompts]
        del policy
        for mode in args.lengths:
            job = Job(
                str(model), dtype, prompts, size.group, size.new_tokens, mode == "equal",
                args.pairs + 1, {**TRL, **accumulated(size), **args.trl},
            )  # fmt: skip
            row = {
                "setting": setting,
                "dtype": dtype,
                "lengths": mode,
                "prompt_tokens": spread(lengths),
                **summary(compare(job, Path(folder), args)),
            }
            found.append(row)
            print(shown(f"{setting}, {dtype}, {mode}", row), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--lengths", nargs="+", default=["equal", "natural"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two pairs")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mawps", help="JSONL files of MAWPS, for the setting short")
    parser.add_argument("--gsm8k", help="JSONL file of GSM8K, for the setting long")
    parser.add_argument("--smollm2", default=SMOLLM2, help="another place of SmolLM2-135M")
    parser.add_argument("--trl", type=json.loads, default={}, help="more of TRL's settings, JSON")
    parser.add_argument("--json", type=Path, help="where results go; rows there are kept")
    parser.add_argument("--plot", type=Path, help="draws what the file of results holds")
    parser.add_argument("--plot-only", action="store_true", help="measures nothing")
    args = parser.parse_args()
    if args.plot and not args.json:
        parser.error("--plot: name the file of results by --json")
    if args.plot_only:
        if not args.plot:
            parser.error("--plot-only: name the picture by --plot")
        plot(json.loads(args.json.read_text(encoding="utf-8")), args.threads, args.plot)
        return
    if args.quick:
        args.pairs = 2
    for setting, given in (("short", args.mawps), ("long", args.gsm8k)):
        if setting in args.settings and not given:
            parser.error(
                f"setting {setting}: give {'--mawps' if setting == 'short' else '--gsm8k'}"
            )
    print(HEAD, flush=True)
    for setting in args.settings:
        for dtype in args.dtypes:
            rows = [{"threads": args.threads, **row} for row in run(setting, dtype, args)]
            if args.json:
                merge(args.json, rows)
    if args.plot:
        plot(json.loads(args.json.read_text(encoding="utf-8")), args.threads, args.plot)


def plot(rows: list[dict[str, Any]], threads: int, path: Path) -> None:
    """Seconds of a step, sampling and the rest, and peak memory, as shares of TRL's; equal lengths,
    as many threads.
    """
    from objective_plots import COLOURS, GREY, plt

    rows = [r for r in rows if r["lengths"] == "equal" and r["threads"] == threads]
    if not rows:
        raise SystemExit(f"nothing to draw: no results of equal lengths and {threads} threads")
    names = [f"{r['setting']}\n{r['dtype']}" for r in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for offset, side, colour in ((-0.2, "trl", GREY), (0.2, "lydite", COLOURS[0])):
        label = {"trl": "TRL", "lydite": "Lydite"}[side]
        at = [i + offset for i in range(len(rows))]
        whole = [r["trl"]["seconds"]["median"] for r in rows]
        seconds = [r[side]["seconds"]["median"] for r in rows]
        sampling = [r[side]["sampling_seconds"]["median"] for r in rows]
        share = [100 * part / of for part, of in zip(sampling, whole, strict=True)]
        rest = [100 * (a - b) / of for a, b, of in zip(seconds, sampling, whole, strict=True)]
        left.bar(at, share, 0.38, color=colour, label=f"{label}, sampling")
        left.bar(at, rest, 0.38, share, color=colour, alpha=0.5, label=f"{label}, the rest")
        for x, height, value in zip(
            at, map(sum, zip(share, rest, strict=True)), seconds, strict=True
        ):
            left.annotate(f"{value:.3g} s", (x, height), ha="center", va="bottom", fontsize=7)
        memory = [r[side]["peak_memory"] for r in rows]
        most = [r["trl"]["peak_memory"] for r in rows]
        heights = [100 * a / b for a, b in zip(memory, most, strict=True)]
        right.bar(at, heights, 0.38, color=colour, label=label)
        for x, height, value in zip(at, heights, memory, strict=True):
            text = f"{value / 2**30:.1f} GiB"
            right.annotate(text, (x, height), ha="center", va="bottom", fontsize=7)
    for axes, title in ((left, "a step's time, % of TRL's"), (right, "peak memory, % of TRL's")):
        axes.set_title(title)
        axes.set_xticks(range(len(rows)), names)
        axes.grid(axis="x", visible=False)
        axes.set_axisbelow(True)
        axes.margins(y=0.12)
    figure.legend(loc="outside lower center", ncols=4, fontsize=7, handles=left.containers)
    figure.savefig(path)


def merge(path: Path, rows: list[dict[str, Any]]) -> None:
    """Puts rows into a file of results, in the place of older ones of the same kind."""

    def kind(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("setting", "dtype", "lengths", "threads"))

    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    new = {kind(row) for row in rows}
    kept = [row for row in old if kind(row) not in new] + rows
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
