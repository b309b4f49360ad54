from __future__ import annotations

import jaxtyping
import pytest
import torch

from lydite.objective.kl import log_ratio


def test_the_hook_is_on() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        log_ratio(torch.zeros(2, 1), torch.zeros(2, 3))
