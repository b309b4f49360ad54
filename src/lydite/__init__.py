"""Lydite trains reasoning language models with GRPO and rewards that can be checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Objective", "Trainer", "UserError", "__version__"]

if TYPE_CHECKING:
    from lydite.api import Trainer
    from lydite.config import UserError
    from lydite.objective import Objective

_HOMES = {"Trainer": "lydite.api", "Objective": "lydite.objective", "UserError": "lydite.config"}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is asked for, so that the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lydite' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
