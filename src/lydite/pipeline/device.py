"""Where a model lives, and in what numbers."""

from __future__ import annotations

from typing import Literal

import torch

from lydite.config import UserError
from lydite.model.loading import ModelConfig


def pick_device(wanted: str) -> str:
    """``auto`` is the GPU if there is one.

    Raises:
        UserError: ``cuda``, and there is none.
    """
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device: cuda was asked for and torch sees no GPU; use device=cpu or device=auto"
        )
    return wanted


def dtype_of(config: ModelConfig) -> Literal["float32", "bfloat16", "auto"]:
    """``auto`` is float32 for a new model, in later stages too, where it comes from a folder."""
    new = config.path.startswith("init:")
    return "float32" if new and config.dtype == "auto" else config.dtype
