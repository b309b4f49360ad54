"""One optimiser step, taken by TRL's own code and by ours, from the same tensors in float64.

TRL's trainer is not re-typed: its methods run on an instance that was made without a model, whose
two ends are replaced, what was sampled and the log-probabilities of it. From rewards to advantages,
masks, importance weights and the loss, every line that runs is TRL's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lydite.objective import Counts, Objective

GROUP, LIMIT, END = 4, 9, 7


@dataclass(frozen=True)
class Step:
    """Twelve completions of three prompts; ``[B, T]`` but for ``rewards`` ``[B]`` or ``[B, R]``.

    ``lengths`` in tokens; a completion of all ``LIMIT`` tokens was cut off, as are the ones named
    in ``cut``. ``tool`` is 1 on tokens that a tool wrote.
    """

    policy: Tensor
    old: Tensor
    behaviour: Tensor
    reference: Tensor
    entropy: Tensor
    rewards: Tensor
    lengths: Sequence[int]
    tool: Tensor
    cut: Sequence[int] = ()

    @property
    def present(self) -> Tensor:
        return torch.arange(LIMIT)[None] < torch.tensor(self.lengths)[:, None]

    @property
    def mask(self) -> Tensor:
        """What is trained on, truncated completions included."""
        return self.present & (self.tool == 0)

    @property
    def truncated(self) -> Tensor:
        rows = torch.arange(len(self.lengths))
        return (torch.tensor(self.lengths) == LIMIT) | torch.isin(rows, torch.tensor(self.cut))

    def with_(self, **changes: Any) -> Step:
        return replace(self, **changes)


def make_step(spread: float = 0.4, seed: int = 2) -> Step:
    """Ratios of both sides of every clip, rewards of every sign, a group without a signal."""
    noise = torch.Generator().manual_seed(seed)
    draws = torch.randn(4, 12, LIMIT, generator=noise, dtype=torch.float64)
    old = draws[0] * 0.3 - 1.5
    tool = torch.zeros(12, LIMIT, dtype=torch.long)
    tool[3, 1:3] = tool[8, 0] = 1
    rewards = [1.0, 0, 0, 1, 0.5, -1, 0.25, 1, 2, 2, 2, 2]
    return Step(
        policy=old + draws[1] * spread,
        old=old,
        behaviour=old + draws[2] * 0.15,
        reference=old + draws[3] * 0.3,
        entropy=(torch.rand(12, LIMIT, generator=noise) * 2).double(),  # TRL ranks in float32
        rewards=torch.tensor(rewards, dtype=torch.float64),
        lengths=[3, 9, 1, 5, 2, 9, 4, 4, 7, 1, 8, 6],
        tool=tool,
    )


@dataclass(frozen=True)
class Found:
    """Advantages ``[B]``, the loss of the step, its gradients by log-probs and by entropies."""

    advantages: Tensor
    loss: float
    gradient: Tensor
    by_entropy: Tensor


def ours(spec: Any, step: Step, weights: Sequence[float] | None = None) -> Found:
    """The step by Lydite: as ``train`` hands it over, in one micro-batch."""
    objective = Objective.parse(spec).with_limit(LIMIT)
    parts = step.rewards.reshape(-1, GROUP, *step.rewards.shape[1:])
    lengths = torch.tensor(step.lengths).reshape(-1, GROUP)
    if objective.by_part:
        advantages = objective.advantages(parts, lengths, weights)
        rewards = parts.sum(dim=2)
    else:
        rewards = parts if parts.dim() == 2 else (parts * parts.new_tensor(weights or 1.0)).sum(2)
        advantages = objective.advantages(rewards, lengths)
    kept = objective.keep(rewards, step.truncated.reshape(-1, GROUP)).reshape(-1)
    mask = step.mask & kept[:, None]
    flat = advantages.reshape(-1)
    policy, entropy = (x.clone().requires_grad_() for x in (step.policy, step.entropy))
    loss, _ = objective.loss(
        policy=policy,
        old=step.old,
        behaviour=step.behaviour,
        reference=step.reference,
        advantages=flat,
        mask=mask,
        counts=Counts.of(mask, torch.arange(len(flat)) // GROUP),
        entropy=entropy,
        picked=objective.pick(policy=policy, entropy=entropy, advantages=flat, mask=mask),
    )
    loss.backward()
    return Found(flat, loss.item(), *_gradients(policy, entropy))


def theirs(step: Step, micro_batches: int = 1, rloo: bool = False, **settings: Any) -> Found:
    """The step by TRL, ``micro_batches`` accumulated; ``settings`` are of its config.

    With ``gradient_accumulation_steps=1`` each of them is an optimiser step of its own, and what is
    found of all is added up.
    """
    trainer = _trainer(step, micro_batches, rloo, settings)
    weights = settings.get("reward_weights")
    parts = step.rewards if step.rewards.dim() == 2 else step.rewards[:, None]
    trainer.reward_weights = torch.tensor(weights or [1.0] * parts.shape[1], dtype=torch.float64)
    trainer.reward_funcs = trainer.reward_func_names = [f"r{i}" for i in range(parts.shape[1])]
    trainer._calculate_rewards = lambda *_: parts
    trainer._logs["rewards"] = defaultdict(list)
    policy, entropy = (x.clone().requires_grad_() for x in (step.policy, step.entropy))
    rows = len(step.lengths) // micro_batches
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        scored = trainer._generate_and_score_completions([{"prompt": "p"}] * len(step.lengths))
        total = 0.0
        for start in range(0, len(step.lengths), rows):
            trainer.seen = [x[start : start + rows] for x in (policy, entropy)]
            part = {
                name: value[start : start + rows] if value.dim() else value
                for name, value in scored.items()
            }
            loss = trainer._compute_loss("now", part)
            # The Trainer of Transformers divides what RLOOTrainer leaves undivided.
            loss = loss / micro_batches if rloo else loss
            loss.backward()
            total += loss.item()
    finally:
        torch.set_default_dtype(default)
    return Found(scored["advantages"], total, *_gradients(policy, entropy))


def _gradients(*of: Tensor) -> list[Tensor]:
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in of]


class _Accelerator:
    """One process: what ranks would add up is there already."""

    device = torch.device("cpu")
    num_processes, process_index, sync_gradients, is_main_process = 1, 0, True, True

    def gather(self, value: Tensor) -> Tensor:
        return value

    gather_for_metrics = gather

    def reduce(self, value: Tensor, reduction: str = "sum") -> Tensor:
        return value

    def pad_across_processes(self, value: Tensor, **_: Any) -> Tensor:
        return value


def _trainer(step: Step, micro_batches: int, rloo: bool, settings: dict[str, Any]) -> Any:
    """TRL's trainer without a model: the attributes that its constructor makes of its config."""
    kind, config = _kinds(rloo, settings)
    args = config(
        output_dir="unused",
        report_to="none",
        per_device_train_batch_size=12 // micro_batches,
        steps_per_generation=micro_batches,
        **{
            "gradient_accumulation_steps": micro_batches,
            "num_iterations": 2,  # so that old log-probs are the old policy's
            "num_generations": GROUP,
            "max_completion_length": LIMIT,
            "bf16": False,
            "gradient_checkpointing": False,
            "use_cpu": True,
            **settings,
        },
    )
    trainer = kind.__new__(kind)
    for name in {*vars(args)} - {"output_dir", "accelerator_config"}:
        if not hasattr(kind, name):
            setattr(trainer, name, getattr(args, name))
    policies = {"old": step.old, "reference": step.reference}
    model = SimpleNamespace(training=True, is_gradient_checkpointing=False, name="old")

    def logprobs(which: Any, *_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        if which == "now":
            return *trainer.seen, None
        return policies[which.name], step.entropy, None

    trainer.__dict__.update(
        args=args,
        model=model,
        ref_model=SimpleNamespace(name="reference"),
        accelerator=_Accelerator(),
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=settings.get("entropy_coef", 0.0) != 0.0,
        current_gradient_accumulation_steps=args.gradient_accumulation_steps,
        environment_factories=None,
        environments=None,
        tools=None,
        eos_token_ids=[END],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _metrics={"train": defaultdict(list)},
        _logs=defaultdict(list),
        _pending_extra_logs={},
        _pending_metrics={},
        _get_per_token_logps_and_entropies=logprobs,
        _generate=lambda _: _sampled(step, rloo),
    )
    return trainer


def _kinds(rloo: bool, settings: dict[str, Any]) -> tuple[Any, Any]:
    if rloo:
        from trl import RLOOConfig, RLOOTrainer

        return RLOOTrainer, RLOOConfig
    if settings.pop("gmpo", False):
        from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

        return GMPOTrainer, GMPOConfig
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer, GRPOConfig


def _sampled(step: Step, rloo: bool) -> tuple[Any, ...]:
    """What ``_generate`` returns: prompts, completions, which of their tokens a model wrote."""
    completions = []
    for length, truncated in zip(step.lengths, step.truncated.tolist(), strict=True):
        completions.append([5] * length if truncated else [*[5] * (length - 1), END])
    prompts = [[3, 4]] * len(completions)
    if rloo:
        return prompts, completions, completions
    wrote = [(1 - row[:n]).tolist() for row, n in zip(step.tool, step.lengths, strict=True)]
    sampling = [row[:n].tolist() for row, n in zip(step.behaviour, step.lengths, strict=True)]
    return prompts, completions, wrote, completions, sampling, {}, None, None
