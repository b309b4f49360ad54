"""The frozen reference that a KL term holds the policy to."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from lydite.model.policy import Policy


class Reference:
    """The policy as it is now, for good.

    With LoRA it costs no memory: the base weights never change, so the reference is the policy with
    its adapter switched off, for as long as :meth:`active` is open. Otherwise it is a frozen copy
    of the weights.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._frozen = None if has_adapter(policy.model) else _freeze(policy.model)

    @contextmanager
    def active(self) -> Iterator[nn.Module]:
        """The reference model, without gradient, in evaluation mode. Do not step the policy while
        it is open.
        """
        if self._frozen is not None:
            with torch.no_grad():
                yield self._frozen
            return
        model = self._policy.model
        training = model.training
        model.eval()
        try:
            with torch.no_grad(), model.disable_adapter():  # type: ignore[operator]
                yield model
        finally:
            model.train(training)


def has_adapter(model: nn.Module) -> bool:
    """Whether the model is wrapped by ``peft``."""
    return hasattr(model, "disable_adapter") and hasattr(model, "peft_config")


def _freeze(model: nn.Module) -> nn.Module:
    frozen = copy.deepcopy(model)
    frozen.requires_grad_(False)
    frozen.eval()
    return frozen
