"""The reference that a KL term holds the policy to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lydite.model.policy import Policy
from lydite.model.shards import frozen_copy, write

_PREFIX = "reference."


class Reference:
    """The policy as it is now, until :meth:`refresh` makes it the policy as it is then.

    With LoRA it costs no memory: the base weights never change, so the reference is the policy with
    its adapter switched off, for as long as :meth:`active` is open; once refreshed, it is the
    policy with a copy of the adapter as it was then. Otherwise it is a frozen copy of the weights.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._trained = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
        self._frozen = None if has_adapter(policy.model) else _freeze(policy)
        # Trained weights as they were at the last refresh; before the first they are those that
        # the policy was loaded with, which need no place in a checkpoint.
        self._refreshed: dict[str, Tensor] = {}

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
        other = self._adapter_of_old() if self._refreshed else model.disable_adapter()  # type: ignore[operator]
        try:
            with torch.no_grad(), other:
                yield model
        finally:
            model.train(training)

    def refresh(self) -> None:
        """The reference becomes the policy, as R1-Zero's did every 400 steps (2501.12948)."""
        self._take(lambda name: self._trained[name].detach())

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs of it by name: nothing before the first refresh."""
        return {_PREFIX + name: tensor for name, tensor in self._refreshed.items()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores :meth:`state_tensors` from among ``tensors``, to the bit."""
        if any(name.startswith(_PREFIX) for name in tensors):
            self._take(lambda name: tensors[_PREFIX + name])

    def _take(self, weight: Callable[[str], Tensor]) -> None:
        for name, parameter in self._trained.items():
            if self._frozen is not None:
                kept = self._frozen.get_parameter(name).detach()
            else:
                kept = self._refreshed.get(name, torch.empty_like(parameter).detach())
            write(kept, weight(name))
            self._refreshed[name] = kept

    @contextmanager
    def _adapter_of_old(self) -> Iterator[None]:
        """The adapter as it was at the last refresh, in the place of today's."""
        today = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        with torch.no_grad():
            _write(self._trained, self._refreshed)
            try:
                yield
            finally:
                _write(self._trained, today)


def has_adapter(model: nn.Module) -> bool:
    """Whether the model is wrapped by ``peft``."""
    return hasattr(model, "disable_adapter") and hasattr(model, "peft_config")


def _write(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


def _freeze(policy: Policy) -> nn.Module:
    if policy.shards is not None:
        return frozen_copy(policy)
    frozen = copy.deepcopy(policy.model)
    frozen.requires_grad_(False)
    frozen.eval()
    return frozen
