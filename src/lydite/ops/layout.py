"""How a flat run of tokens attends: the contract between attention and whoever packs tokens.

Linear layers see one flat sequence ``[1, N]`` with no padding; only attention needs to know which
tokens belong together. A layout carries that knowledge and computes attention for every layer.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Layout(Protocol):
    """Attention over ``N`` flat tokens.

    ``query`` is ``[1, H, N, D]``, ``key`` and ``value`` are ``[1, H_kv, N, D]`` with rotary
    positions applied; the result is ``[1, N, H, D]``. ``layer`` counts from 0, ``scaling``
    multiplies the scores.
    """

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor: ...
