"""AdamW with float32 states whatever the weights' dtype, and learning-rate schedules as pure
functions of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from lydite.config import Config, UserError
from lydite.model.shards import is_sharded, local, sum_over_shards, write
from lydite.ops.summed import summed_in_place
from lydite.train.movement import update_ratio
from lydite.train.saved_shards import cut_for

Schedule = Literal["constant", "linear", "cosine"]


class OptimizerConfig(Config):
    """AdamW and its learning rate. The rate warms up linearly, holds, then decays to ``final_lr``
    times its peak.
    """

    lr: float = Field(1e-6, gt=0, description="Peak learning rate.")
    warmup_steps: int = Field(
        0, ge=0, description="Optimiser steps over which the rate rises from 0."
    )
    schedule: Schedule = Field(
        "constant", description="Shape of the decay: constant, linear or cosine."
    )
    decay_from: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the stage after which the decay starts (0.5: the second half).",
    )
    final_lr: float = Field(
        0.0, ge=0, le=1, description="Where the decay ends, as a share of the peak."
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's two averaging rates.")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(
        1.0, gt=0, description="Gradients are scaled down to this global norm."
    )


def lr_at(config: OptimizerConfig, step: int, total: int) -> float:
    """The learning rate of optimiser step ``step`` (from 0) of ``total``."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    start = max(config.warmup_steps, int(config.decay_from * total))
    progress = min(1.0, max(0.0, (step - start) / max(1, total - start)))
    shape = (
        1 - progress if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    )
    return config.lr * (config.final_lr + (1 - config.final_lr) * shape)


class Optimizer:
    """AdamW over float32 master copies of the trainable parameters.

    Float32 parameters are their own masters, so nothing is copied for them. Updates far smaller
    than a bfloat16 weight's spacing would otherwise vanish: at RL's learning rates, nearly all of
    them.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.config = config
        self._model = model
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise UserError(
                "model: no parameter is trainable; check lora.targets or unfreeze the model"
            )
        self._named = dict(named)
        self._masters = {
            name: p if p.dtype in (torch.float32, torch.float64) else p.detach().float()
            for name, p in self._named.items()
        }
        groups: dict[tuple[bool, bool], list[Tensor]] = {}
        for name, master in self._masters.items():
            # Sharded and whole ones do not go into one fused step.
            key = self._named[name].ndim < 2, is_sharded(master)
            groups.setdefault(key, []).append(master)
        self._adamw = torch.optim.AdamW(
            [
                {"params": masters, "weight_decay": 0.0 if flat else config.weight_decay}
                for (flat, _), masters in sorted(groups.items(), key=lambda item: item[0])
            ],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )

    @property
    def masters(self) -> list[Tensor]:
        """What is updated, and where :meth:`backward` leaves the gradients."""
        return list(self._masters.values())

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a micro-batch's loss to that of the masters.

        One parameter after another, as soon as it is there: a gradient in bfloat16 does not wait
        for those of the whole model, and those of an embedding are added where they lie.
        """
        taken = [
            parameter.register_post_accumulate_grad_hook(partial(_take, master))
            for parameter, master in self._apart()
            if not is_sharded(parameter)
        ]
        try:
            with summed_in_place(own for own in self._masters.values() if not is_sharded(own)):
                loss.backward()
        finally:
            for handle in taken:
                handle.remove()
        self._gather()

    def _apart(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Parameters that are not their own masters, and those."""
        for name, parameter in self._named.items():
            if self._masters[name] is not parameter:
                yield parameter, self._masters[name]

    def _gather(self) -> None:
        """Moves gradients that came another way to the float32 masters: summed in bfloat16, small
        ones would vanish beside large ones.
        """
        for parameter, master in self._apart():
            if parameter.grad is not None:
                _take(master, parameter)

    def step(self, lr: float) -> float:
        """Clips, updates and clears the gradients; returns their global norm before clipping.

        Raises:
            UserError: the gradient is NaN or infinite; nothing was updated.
        """
        self._gather()
        norm = clip(self._masters.values(), self.config.max_grad_norm)
        if not math.isfinite(norm):
            raise UserError(
                "training: the gradient is not a finite number; lower optimizer.lr, or train with "
                "model.dtype=float32; weights and checkpoints are as they were before this step"
            )
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, parameter in self._named.items():
                if self._masters[name] is not parameter:
                    parameter.copy_(self._masters[name])
        return norm

    def update_ratio(self) -> float:
        """How far the last step moved the weights, as a share of their size
        (:func:`lydite.train.movement.update_ratio`).
        """
        return update_ratio(self._adamw.param_groups, self._adamw.state)

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything a resumed stage needs, as named tensors: weights (their float32 masters),
        moments, step counts.
        """
        found: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            found[f"weight.{name}"] = master.detach()
            for key, value in self._adamw.state.get(master, {}).items():
                found[f"{key}.{name}"] = value
        return found

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores what :meth:`state_tensors` gave, to the bit, in the model too."""
        tensors = cut_for(self._model, tensors)
        for name, master in self._masters.items():
            write(master, tensors[f"weight.{name}"])
            with torch.no_grad():
                self._named[name].copy_(master)
            state: dict[str, Tensor] = {}
            for key in ("step", "exp_avg", "exp_avg_sq"):
                if f"{key}.{name}" in tensors:
                    value = tensors[f"{key}.{name}"]
                    # Fused AdamW keeps its step count beside the parameter.
                    count = torch.empty_like(value, device=local(master).device)
                    state[key] = count if key == "step" else torch.empty_like(master)
                    write(state[key], value)
            if state:
                self._adamw.state[master] = state


def _take(master: Tensor, parameter: Tensor) -> None:
    """Moves a parameter's gradient to its master."""
    assert parameter.grad is not None
    if master.grad is None:
        master.grad = parameter.grad.to(master.dtype)
    else:
        master.grad.add_(parameter.grad)
    parameter.grad = None


def clip(parameters: Iterable[Tensor], limit: float) -> float:
    """Scales gradients down to a global norm of ``limit``; returns the norm before. Where some are
    sharded, the norm is that of all ranks' shards, which must all call this.
    """
    held = [p for p in parameters if p.grad is not None]
    if not any(map(is_sharded, held)):
        return float(nn.utils.clip_grad_norm_(held, limit, foreach=True)) if held else 0.0
    norm = _norm_over_shards([p.grad for p in held if p.grad is not None])
    if norm + 1e-6 > limit:
        for parameter in held:
            assert parameter.grad is not None
            local(parameter.grad).mul_(limit / (norm + 1e-6))
    return norm


def _norm_over_shards(gradients: Sequence[Tensor]) -> float:
    """The norm of sharded gradients, and of such as every rank has whole."""
    wide = torch.promote_types(gradients[0].dtype, torch.float32)
    squares = [local(gradient).to(wide).pow(2).sum() for gradient in gradients]
    return math.sqrt(float(sum_over_shards(gradients, squares)))
