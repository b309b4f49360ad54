"""An engine with weights of its own: it samples in one thread while another trains the policy."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lydite.model.policy import Policy
from lydite.rollout.engine import EngineConfig, Progress
from lydite.rollout.select import local_engine
from lydite.types import Completion, OnCompletion, Request


class Stopped(Exception):
    """:meth:`DetachedLocalEngine.stop` was called."""


class DetachedLocalEngine:
    """Implements :class:`lydite.types.StreamingEngine` on a copy of a policy's trained weights;
    frozen ones, below LoRA's adapters, are shared.
    """

    def __init__(self, policy: Policy, config: EngineConfig | None = None, seed: int = 0) -> None:
        self._live = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
        copy = policy.detached()
        self._own = {name: copy.model.get_parameter(name) for name in self._live}
        self._engine = local_engine(copy, config, seed)
        self._stopped = threading.Event()

    @property
    def version(self) -> int:
        """The policy version whose weights it has."""
        return self._engine.version

    @version.setter
    def version(self, version: int) -> None:
        self._engine.version = version

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the policy's trained weights as they are now, by name."""
        return {name: parameter.detach().clone() for name, parameter in self._live.items()}

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See :class:`lydite.rollout.engine.WeightedEngine`."""
        missing = set(self._own)
        for name, tensor in weights:
            self._own[name].copy_(tensor)
            missing.discard(name)
        assert not missing, f"trained weights that were not given: {sorted(missing)}"
        self.version = version

    @property
    def busy(self) -> bool:
        """See :class:`lydite.types.BusyEngine`."""
        return self._engine.busy

    def interrupt(self) -> None:
        """See :class:`lydite.types.InterruptibleEngine`."""
        self._engine.interrupt()

    def stop(self) -> None:
        """Ends a call that is under way, and those to come, by :class:`Stopped`."""
        self._stopped.set()

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """See :meth:`stream`."""
        return self.stream(requests, None)

    def stream(
        self, requests: Sequence[Request], on_completion: OnCompletion | None
    ) -> list[list[Completion]]:
        """As :meth:`lydite.rollout.local.LocalEngine.stream`."""
        self._check()
        return self._engine.stream(requests, on_completion, self._check)

    def _check(self, progress: Progress | None = None) -> None:
        if self._stopped.is_set():
            raise Stopped
