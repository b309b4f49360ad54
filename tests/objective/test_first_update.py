"""On the first update after sampling every ratio is 1, and many presets are one but for a factor.

`docs/objectives.md` names these families; a factor is what Adam takes away.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lydite.objective import Counts, Objective

FAMILIES = (
    ("grpo", "gspo", "gspo_token", "gmpo", "sapo"),
    ("dr_grpo", "rloo", "reinforce++_baseline", "gpg", "lite_ppo"),
    ("bnpo", "dapo", "cispo", "dppo", "vespo", "gdpo", "luspo"),
    *((name,) for name in ("reinforce", "reinforce++", "opo", "maxrl", "passk", "deepseek_v32")),
    ("scalerl",),
)
REWARDS = torch.tensor(
    [[1, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0], [0] * 8],
    dtype=torch.float64,
)


def direction(spec: str) -> Tensor:
    """The gradient of the first update on four groups of eight, of length 1."""
    objective = Objective.parse(spec).with_limit(20)
    groups, size = REWARDS.shape
    noise = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 13, (groups, size), generator=noise)
    start = -torch.rand(groups * size, 12, generator=noise, dtype=torch.float64)
    kept = objective.keep_groups(REWARDS)
    mask = (torch.arange(12) < lengths.flatten()[:, None]) & kept.repeat_interleave(size)[:, None]
    rewards = REWARDS[kept][:, :, None] if objective.by_part else REWARDS[kept]
    advantages = torch.zeros(groups, size, dtype=torch.float64)
    advantages[kept] = objective.advantages(rewards, lengths[kept])
    owners = torch.arange(groups).repeat_interleave(size)
    policy = start.clone().requires_grad_()
    loss, _ = objective.loss(
        policy=policy,
        behaviour=start,
        reference=start,
        advantages=advantages.flatten(),
        mask=mask,
        counts=Counts.of(mask, owners),
        prompt_tokens=mask.view(groups, -1).sum(1)[owners],
    )
    loss.backward()
    assert policy.grad is not None
    return policy.grad / policy.grad.norm()


@pytest.mark.parametrize("family", FAMILIES, ids="+".join)
def test_a_family_has_one_direction_and_no_other_has_it(family: tuple[str, ...]) -> None:
    first = direction(family[0])
    for name in family[1:]:
        torch.testing.assert_close(direction(name), first, rtol=0, atol=1e-9)
    for other in FAMILIES:
        if other != family:
            assert (direction(other[0]) - first).abs().max() > 1e-3
