"""One rank of two: takes every step of test_ranks.py on its share, the first one saves the results.

Run as ``rank_worker.py RANK STORE OUT``.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from test_learner import SPECS, batch
from tiny_policy import tiny_model

from lydite.model.loading import load_policy
from lydite.model.reference import Reference
from lydite.objective.objective import Objective
from lydite.train.critic import Critic, CriticConfig
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.train.ranks import ALONE, ProcessRanks, Ranks
from lydite.types import TrainBatch

# Which groups each of two ranks has.
SHARES = {"uneven": ([0, 2], [1]), "one idle": ([], [0, 1, 2])}
UPDATES = {
    "grpo+kl": {"epochs": 2},
    "dapo+kl_cov": {"epochs": 2},
    "scalerl": {"minibatches": 1},
}


def share(groups: list[int]) -> TrainBatch:
    whole = batch()
    return TrainBatch([whole.groups[i] for i in groups], whole.temperature)


def policy():
    found = load_policy(tiny_model(), seed=0)
    found.model.to(torch.float64)
    return found


def learner(of, ranks: Ranks = ALONE, budget: int = 12, **update: int) -> Learner:
    settings = UpdateConfig(tokens_per_micro_batch=budget, **update)
    return Learner(of, OptimizerConfig(lr=1e-3), settings, Reference(of), ranks=ranks)


def gradient(of, spec: str, data: TrainBatch, ranks: Ranks = ALONE) -> dict[str, torch.Tensor]:
    """The step's gradient by parameter; the old policy differs a little from the present one."""
    trainer = learner(of, ranks)
    objective = Objective.parse(spec).with_limit(16)
    now = trainer.logprobs(data)
    olds = [x + 0.05 * torch.arange(len(x)) / 10 for x in now]
    references = [x - 0.03 for x in now]
    of.model.zero_grad()
    trainer._accumulate(data, objective, olds, references)
    return {n: p.grad for n, p in of.model.named_parameters() if p.grad is not None}


def updated(spec: str, data: TrainBatch, ranks: Ranks = ALONE):
    """Weights and metrics after two rollouts."""
    trainer = learner(policy(), ranks, **UPDATES[spec])
    objective = Objective.parse(spec).with_limit(16)
    metrics = [trainer.update(data, objective, (step, 2)) for step in range(2)]
    return dict(trainer.policy.model.state_dict()), metrics


def judged(data: TrainBatch, ranks: Ranks = ALONE):
    """PPO with a KL in the reward: advantages by group, figures, the critic's gradient."""
    of = policy()
    critic = Critic(of, CriticConfig(kind="head"), OptimizerConfig(lr=1e-3), 12, ranks)
    with torch.no_grad():
        critic.model.head.weight.copy_(torch.linspace(-1, 1, 32)[None])
    trainer = Learner(of, OptimizerConfig(lr=1e-3), UpdateConfig(), Reference(of), critic, ranks)
    objective = Objective.parse("ppo+kl_in_reward")
    told, figures = trainer.judge(data, objective)
    critic.accumulate(told, objective)
    advantages = [[s.advantage for s in group.sequences] for group in told.groups]
    return advantages, figures, critic.model.head.weight.grad


def main(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=200),
    )
    ranks = ProcessRanks()
    mine = {name: share(groups[rank]) for name, groups in SHARES.items()}
    whole = policy()
    found = {
        "gradients": {spec: gradient(whole, spec, mine["uneven"], ranks) for spec in SPECS},
        "idle": {
            spec: gradient(whole, spec, mine["one idle"], ranks) for spec in ("grpo", "grpo+kl_cov")
        },
        "updates": {spec: updated(spec, mine["uneven"], ranks) for spec in UPDATES},
        # Two groups and one: the second rank has nothing for the second step, and waits for nobody.
        "steps": learner(policy(), ranks, minibatches=2).update(
            mine["uneven"], Objective.parse("grpo"), (0, 1)
        ),
    }
    weights = torch.cat([w.flatten() for w in found["updates"]["grpo+kl"][0].values()])
    advantages, figures, grad = judged(mine["uneven"], ranks)
    by_rank = ranks.gathered(advantages)
    found["judged"] = [by_rank[0][0], by_rank[1][0], by_rank[0][1]], figures, grad
    found["weights agree"] = bool(torch.stack(ranks.gathered(weights)).diff(dim=0).eq(0).all())
    if rank == 0:
        torch.save(found, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
