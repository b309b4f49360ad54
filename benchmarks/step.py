"""What the two overlaps of a step gain, each beside the same step without it, interleaved.

    python benchmarks/step.py verify [--model quickstart|smollm2] [--rounds 3] [--spin 0.02]
    python benchmarks/step.py sample [--model quickstart|smollm2] [--rounds 3] [--json FILE]

``verify``: completions end between a fifth and all of a limit; each is answered by a program that
the ``code`` verifier runs in its sandboxes, working for ``--spin`` seconds there. One side verifies
each as it ends, the other all of them after the last; their verdicts must be equal. ``--threads``
is what decodes; with as many as there are processors Lydite would wait by itself, here it does not.

``sample``: an RL stage with ``staleness: 0`` and with ``staleness: 1``, one core for tensor work in
each, and ``staleness: 0`` with two. Seconds per step, first step left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from workloads import SETTINGS, Setting, load

from lydite.config import validate
from lydite.model.policy import Policy
from lydite.rollout.detached import DetachedLocalEngine
from lydite.rollout.select import local_engine
from lydite.train.answers import sample_and_verify
from lydite.train.clock import Clock
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.learner import Learner
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import (
    Completion,
    Engine,
    Message,
    OnCompletion,
    Outcome,
    Problem,
    Request,
    SamplingParams,
    StreamingEngine,
    Verdict,
)
from lydite.verify.settings import VerifierConfig
from lydite.verify.verifier import build

Found = dict[str, list[float]]
"""Seconds of each round, by side."""

PROGRAM = """```python
import time
end = time.process_time() + {spin}
while time.process_time() < end: pass
print(int(input()) + {add})
```"""


class Programs:
    """An engine whose completions are programs: right or wrong by their first token."""

    def __init__(self, engine: StreamingEngine, spin: float) -> None:
        self.version = 0
        self._engine = engine
        self._spin = spin

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion
    ) -> list[list[Completion]]:
        found = self._engine.stream(requests, lambda i, c: on_completion(i, self._program(c)))
        return [[self._program(c) for c in group] for group in found]

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        return self.stream(requests, lambda index, completion: None)

    def _program(self, completion: Completion) -> Completion:
        text = PROGRAM.format(spin=self._spin, add=completion.token_ids[0] % 2)
        return replace(completion, text=f"{text}\n{completion.sample}")


class AtTheEnd:
    """The same engine, which hands nothing over before its end."""

    def __init__(self, engine: Engine) -> None:
        self.version = 0
        self.generate = engine.generate


def prompts_of(policy: Policy, setting: Setting, count: int) -> list[Prompt]:
    """Random prompts; as problems of code, they ask for one more than the input."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = policy.head[0].shape[0]
    tests = {"tests": [{"input": "1", "output": "2"}]}
    found = []
    for number in range(count):
        ids = torch.randint(vocabulary, (setting.prompt_tokens,), generator=generator).tolist()
        problem = Problem(f"p{number}", "", (Message("user", ""),), fields=tests)
        found.append(Prompt(problem, tuple(ids)))
    return found


def verify(model: str, rounds: int, spin: float, threads: int) -> Found:
    """Both sides of the first overlap."""
    torch.set_num_threads(threads)
    setting = SETTINGS["short" if model == "smollm2" else "quickstart"]
    policy = load(model)
    policy.stop_ids = frozenset()
    prompts = prompts_of(policy, setting, setting.prompts)
    least = setting.new_tokens // 5
    step = (setting.new_tokens - least) / max(1, len(prompts) * setting.group - 1)
    requests = [
        Request(prompt.problem.id, prompt.token_ids, 1, SamplingParams(limit), first_sample=sample)
        for n, prompt in enumerate(prompts)
        for sample in range(setting.group)
        for limit in [least + int(step * (sample * len(prompts) + n))]
    ]
    problems = [prompt.problem for prompt in prompts for _ in range(setting.group)]
    verifier = build(validate(VerifierConfig, {"rewards": "code"}), [])
    programs = Programs(local_engine(policy), spin)
    sides: dict[str, Engine] = {"after the last": AtTheEnd(programs), "as each ends": programs}
    seconds: Found = {name: [] for name in sides}
    left: dict[str, list[float]] = {name: [] for name in sides}
    said: list[list[list[Verdict]]] = []
    try:
        verifier.warm()
        for round_ in range(rounds + 1):
            for name, engine in sides.items():
                clock, began = Clock(), time.perf_counter()
                _, verdicts = sample_and_verify(engine, verifier, problems, requests, clock)
                said.append(verdicts)
                _tell(name, round_, time.perf_counter() - began)
                if round_:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
                    left[name].append(clock.seconds["seconds_verify"])
    finally:
        verifier.close()
    assert all(verdicts == said[0] for verdicts in said), "the verdicts differ"
    right = sum(v.outcome is Outcome.CORRECT for group in said[0] for v in group)
    print(f"{len(requests)} programs of {spin} s, {right} right; verdicts equal")
    for name in sides:
        waited = statistics.median(left[name])
        print(f"{name:15} {_spread(seconds[name])} s, of it {waited:.2f} s after the last token")
    _ratios(*seconds.values())
    return seconds


class Parity:
    """Pays for an even number of characters, in no time."""

    def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
        return [
            Verdict(Outcome.WRONG, 0.0) if len(t) % 2 else Verdict(Outcome.CORRECT, 1.0)
            for t in texts
        ]

    def close(self) -> None:
        pass


def sample(model: str, rounds: int) -> Found:
    """The three sides of the second overlap."""
    setting = SETTINGS["short" if model == "smollm2" else "quickstart"]
    sides: dict[str, tuple[int, int]] = {
        "in turn, 2 threads": (0, 2),
        "in turn, 1 thread": (0, 1),
        "beside, 1 thread each": (1, 1),
    }
    seconds: Found = {name: [] for name in sides}
    tokens: dict[str, list[float]] = {name: [] for name in sides}
    # A step of each in turn would let the one that samples ahead do so in the others' time.
    for name, (_, threads) in sides.items():
        torch.set_num_threads(threads)
        with closing(_trainer(load(model), setting, sides[name][0])) as trainer:
            for step in range(rounds + 1):
                began = time.perf_counter()
                metrics = trainer.step(step).metrics
                _tell(name, step, time.perf_counter() - began)
                if step:
                    seconds[name].append(time.perf_counter() - began)
                    tokens[name].append(metrics["tokens"])
    for name in sides:
        print(f"{name:22} {_spread(seconds[name])} s a step, {sum(tokens[name]):.0f} tokens in all")
    _ratios(seconds["in turn, 2 threads"], seconds["beside, 1 thread each"])
    return seconds


def _trainer(policy: Policy, setting: Setting, staleness: int) -> RLTrainer:
    policy.stop_ids = frozenset()
    config = RLConfig(
        steps=1000,
        prompts_per_step=setting.prompts,
        group_size=setting.group,
        staleness=staleness,
        objective="grpo+tis",
        sampling=SamplingConfig(max_tokens=setting.new_tokens),
        optimizer=OptimizerConfig(lr=1e-6),
    )
    parts = RLParts(
        local_engine(policy),
        Parity(),
        Learner(policy, config.optimizer, config.update),
        config.build_objective(),
        ahead=DetachedLocalEngine(policy) if staleness else None,
    )
    return RLTrainer(config, parts, prompts_of(policy, setting, 4 * setting.prompts), seed=0)


def _tell(side: str, round_: int, seconds: float) -> None:
    print(f"  {side}, round {round_}: {seconds:.2f} s", file=sys.stderr, flush=True)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):6.2f} (from {min(values):.2f} to {max(values):.2f})"


def _ratios(before: Sequence[float], after: Sequence[float]) -> None:
    ratios = [a / b for a, b in zip(before, after, strict=True)]
    print(f"ratio, pair by pair: {_spread(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["verify", "sample"])
    parser.add_argument("--model", choices=["quickstart", "smollm2"], default="quickstart")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spin", type=float, default=0.02, help="a program's work, in seconds")
    parser.add_argument("--threads", type=int, default=1, help="of the engine, for verify")
    parser.add_argument("--json", type=Path, help="where results go")
    args = parser.parse_args()
    if args.what == "verify":
        found = verify(args.model, args.rounds, args.spin, args.threads)
    else:
        found = sample(args.model, args.rounds)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
