"""DAPO's soft overlong punishment: a growing penalty as a completion nears its limit."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def soft_overlong(lengths: Int[Tensor, "*B"], limit: int, cache: float) -> Float[Tensor, "*B"]:
    """What to add to each reward, from 0 to −1.

    0 up to ``limit − cache`` tokens, then a straight line down to −1 at ``limit``, −1 beyond.
    ``lengths`` are completion lengths in tokens; ``cache`` tokens must be positive.
    arXiv 2503.14476, equation 13.
    """
    assert cache > 0, "a cache of no tokens has no slope"
    return (((limit - cache) - lengths) / cache).clamp(-1.0, 0.0)
