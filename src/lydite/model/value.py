"""A value model: a trunk and a head of one number, what it expects a completion to earn yet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from lydite.model.attention import backbone, hidden_states
from lydite.model.policy import Policy
from lydite.model.scoring import Ids, pad_whole
from lydite.model.shards import inside, let_go, trunk_copy
from lydite.ops.groups import pack_groups, take

R = TypeVar("R")


class ValueModel(nn.Module):
    """Values ``V_t`` of a prompt and the tokens before ``t``, from the hidden state that predicts
    token ``t``.

    The head starts at 0, so a new critic expects nothing of anything, and is at least float32. Its
    parameters are those that a critic may change: not the policy's.
    """

    def __init__(self, policy: Policy, own_trunk: bool) -> None:
        """``own_trunk``: a copy of the policy's weights as they are now. What LoRA froze is shared
        with the policy, so that only adapters are copied. Else the head reads the policy's trunk.
        """
        super().__init__()
        self._flat, self._device = policy.flat, policy.device
        source = backbone(policy.model)
        if own_trunk and policy.shards is not None:
            source = self.trunk = trunk_copy(policy)
        elif own_trunk:
            frozen = {id(p): p for p in source.parameters() if not p.requires_grad}
            source = self.trunk = copy.deepcopy(source, frozen)
        self.own_trunk = own_trunk
        self._within = (policy.model,)
        self._reads = (source,)  # In a tuple, it is no submodule: the policy's stays the policy's.
        weight = policy.head[0]
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.head = nn.Linear(weight.shape[1], 1, bias=False, dtype=wide, device=policy.device)
        nn.init.zeros_(self.head.weight)

    @property
    def reads(self) -> nn.Module:
        """The module that makes the hidden states."""
        return self._reads[0]

    def forward(self, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]]) -> Tensor:
        """``[B, T]``, zero past a completion's end; rows as in :func:`lydite.model.scoring.score`,
        and a prompt is run once for all its completions.
        """
        with nullcontext() if self.own_trunk else torch.no_grad():
            states, unpack = self._states(prompts, completions)
        return unpack(self.head(states.to(self.head.weight.dtype)).squeeze(-1))

    def _states(
        self, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]]
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Hidden states before each completion token, and how their values become ``[B, T]``."""
        if self._flat:
            packed = pack_groups(prompts, completions, self._device)
            hidden = self._run(
                lambda: hidden_states(
                    self.reads, packed.input_ids, packed.position_ids, packed.layout
                )
            )
            return take(hidden, packed.predictor), packed.padded
        whole = pad_whole(prompts, completions, self._device)
        out = self._run(
            lambda: self.reads(
                input_ids=whole.input_ids, attention_mask=whole.attention_mask, use_cache=False
            )
        )
        states = whole.before_each(out.last_hidden_state)
        return states, lambda values: values.masked_fill(~whole.real, 0.0)

    def _run(self, run: Callable[[], R]) -> R:
        """A pass through the trunk, which is a model of its own or part of the policy's."""
        if not self.own_trunk:
            return inside(self._within[0], run)
        found = run()
        let_go(self.reads)
        return found
