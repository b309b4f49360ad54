"""The two sides of ``vs_trl.py``: each takes RL steps in a process of its own, one when told to.

A line on standard input is a turn; the answer is a line of JSON. Both draw from the same prompts
(all of them in every step), reward a completion by the same function of its text, and take one
AdamW step on a clipped token-mean loss with advantages over the group's sample deviation.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LR, CLIP = 1e-6, 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """What a contender is asked: the same for both."""

    model: str
    dtype: str
    prompts: list[str]
    group: int
    new_tokens: int
    equal: bool
    steps: int
    trl: dict[str, Any]

    @staticmethod
    def read(text: str) -> Job:
        return Job(**json.loads(text))

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(slots=True)
class Turn:
    """What a step came to. ``cpu`` is processor time, ``sampling`` the part of ``seconds`` in which
    tokens were sampled, ``memory`` the process's peak in bytes, ``loaded`` what it held before its
    first step.
    """

    seconds: float
    cpu: float
    sampling: float
    tokens: int
    memory: int = 0
    loaded: int = 0


def reward_of(text: str) -> float:
    """As good as random, so that every group has a signal and no completion is idle."""
    return zlib.crc32(text.encode()) % 997 / 997


class Turns:
    """Waits for a turn, and answers it."""

    def __init__(self) -> None:
        # Whatever libraries print goes elsewhere.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._loaded = 0

    def wait(self) -> None:
        if not self._loaded:
            self._loaded = _status("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
            print("ready", file=self._out, flush=True)
        if not sys.stdin.readline():
            sys.exit(0)

    def answer(self, turn: Turn) -> None:
        turn.memory, turn.loaded = _status("VmHWM"), self._loaded
        print(json.dumps(asdict(turn)), file=self._out, flush=True)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))


def run_lydite(job: Job) -> None:
    """The RL loop as a recipe runs it, but for a verifier in place."""
    from lydite.config import validate
    from lydite.model.loading import ModelConfig, load_policy
    from lydite.rollout.local import LocalEngine
    from lydite.train.evaluate import Prompt
    from lydite.train.learner import Learner
    from lydite.train.rl import RLParts, RLTrainer
    from lydite.train.rl_config import RLConfig
    from lydite.types import Outcome, Problem, Verdict

    class Text:
        unit = "all"

        def verify(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
            return [Verdict(Outcome.WRONG, reward_of(text)) for text in texts]

        def close(self) -> None: ...

    turns = Turns()
    policy = load_policy(ModelConfig(path=job.model, dtype=job.dtype))  # type: ignore[arg-type]
    if job.equal:
        policy.stop_ids = frozenset()
    config = validate(
        RLConfig,
        {
            "steps": job.steps,
            "prompts_per_step": len(job.prompts),
            "group_size": job.group,
            "objective": {
                "preset": "grpo",
                "patches": ["token_mean"],
                "std": "sample",
                "std_eps": 1e-4,
            },
            "sampling": {"max_tokens": job.new_tokens, "temperature": 1.0},
            "optimizer": {"lr": LR},
        },
    )
    learner = Learner(policy, config.optimizer, config.update)
    parts = RLParts(LocalEngine(policy), Text(), learner, config.build_objective(), 1.0)
    shown = [
        Prompt(Problem(str(i), text, ()), tuple(policy.tokenizer(text)["input_ids"]))
        for i, text in enumerate(job.prompts)
    ]
    trainer = RLTrainer(config, parts, shown, seed=0)
    for step in range(job.steps):
        turns.wait()
        began = time.perf_counter(), time.process_time()
        found = trainer.step(step).metrics
        seconds, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        turns.answer(Turn(seconds, cpu, found["seconds_sample"], int(found["tokens"])))


def run_trl(job: Job) -> None:
    """TRL's trainer on one CPU process, set for speed: see ``TRL`` in ``vs_trl.py``."""
    import tempfile

    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    turns = Turns()
    generation = {"min_new_tokens": job.new_tokens} if job.equal else {}
    rows = len(job.prompts) * job.group
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": job.steps,
        "per_device_train_batch_size": rows,
        "num_generations": job.group,
        "max_completion_length": job.new_tokens,
        "generation_kwargs": generation,
        "model_init_kwargs": {"dtype": job.dtype},
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "epsilon": CLIP,
        "beta": 0.0,
        "loss_type": "dapo",
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
        "shuffle_dataset": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        **job.trl,
    }
    sampled = {"tokens": 0, "seconds": 0.0}

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        sampled["tokens"] += sum(map(len, completion_ids))
        return [reward_of(text) for text in completions]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.wait()
            sampled.update(tokens=0, seconds=0.0)
            self.began = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds = time.perf_counter() - self.began[0]
            cpu = time.process_time() - self.began[1]
            turns.answer(Turn(seconds, cpu, sampled["seconds"], int(sampled["tokens"])))

    trainer = GRPOTrainer(
        model=job.model,
        reward_funcs=[reward],
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_dict({"prompt": job.prompts}),
        callbacks=[Clock()],
    )
    generate = trainer._generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return generate(*args, **kwargs)
        finally:
            sampled["seconds"] += time.perf_counter() - start

    trainer._generate = timed
    trainer.train()


CONTENDERS = {"lydite": run_lydite, "trl": run_trl}

if __name__ == "__main__":
    CONTENDERS[sys.argv[1]](Job.read(Path(sys.argv[2]).read_text(encoding="utf-8")))
