"""What sequences hold, as padded tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lydite.types import TrainSequence


def field_of(sequences: Sequence[TrainSequence], field: str, like: Tensor) -> Tensor:
    """A per-token field as ``[B, T]``."""
    rows = [getattr(s, field) for s in sequences]
    longest = max(map(len, rows))
    flat = array("d")
    for row in rows:
        flat.extend(row)
        flat.extend([0.0] * (longest - len(row)))
    if not flat:
        return like.new_zeros(len(rows), 0)
    return torch.frombuffer(flat, dtype=torch.float64).view(len(rows), longest).to(like)


def advantages_of(sequences: Sequence[TrainSequence], like: Tensor) -> Tensor:
    """Advantages, ``[B]`` or, where tokens have their own, ``[B, T]``."""
    found = [s.advantage for s in sequences]
    if not any(isinstance(advantage, Sequence) for advantage in found):
        return torch.tensor(found, dtype=like.dtype, device=like.device)
    rows = [
        torch.tensor(a, dtype=like.dtype).expand(len(s.token_ids))
        for a, s in zip(found, sequences, strict=True)
    ]
    return padded(rows, like)


def padded(rows: Sequence[Tensor], like: Tensor) -> Tensor:
    """Rows of unequal length as ``[B, T]`` beside ``like``, zero past their ends."""
    return pad_sequence(list(rows), batch_first=True).to(like)
