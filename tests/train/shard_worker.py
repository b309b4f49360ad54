"""Ranks of sharded policies: forks them for several meshes and saves what they find.

Run as ``shard_worker.py FOLDER``. Ranks are forked from one process that has imported everything
and computed nothing.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor
from test_learner import batch
from tiny_policy import tiny_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lydite.config import UserError
from lydite.model import sharded_loading
from lydite.model.loading import LoraConfig, ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.reference import Reference
from lydite.model.saving import save_policy
from lydite.model.scoring import score
from lydite.model.shards import local
from lydite.objective.objective import Objective
from lydite.train import checkpoint
from lydite.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from lydite.train.critic import Critic, CriticConfig
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.train.preference import Pair, PreferenceConfig, PreferenceTrainer
from lydite.train.ranks import ALONE, Ranks
from lydite.train.sft import Example, SFTConfig, SFTTrainer
from lydite.train.sharding import ShardingConfig, sharded_policy
from lydite.types import TrainBatch, TrainGroup


def untied() -> ModelConfig:
    whole = tiny_model()
    return whole.model_copy(update={"init": {**whole.init, "tie_word_embeddings": False}})


def not_flat() -> ModelConfig:
    """Its attention scores have a soft cap, so it runs padded, the plain way."""
    whole = tiny_model()
    # A width whose root, by which it scales embeddings, is exact in every type.
    return whole.model_copy(
        update={"path": "init:gemma2", "init": {**whole.init, "hidden_size": 16}}
    )


def qwen3() -> ModelConfig:
    """It normalises each head, and a rank that has some of the heads sees the gradient of those."""
    return untied().model_copy(update={"path": "init:qwen3"})


@dataclass(frozen=True)
class Case:
    """What is trained, and how; the shares of groups are those of each rank."""

    model: ModelConfig = field(default_factory=tiny_model)
    spec: str = "grpo+kl"
    update: dict[str, int] = field(default_factory=dict)
    shares: tuple[tuple[int, ...], ...] = ()
    sharding: ShardingConfig = field(default_factory=lambda: ShardingConfig(recompute=False))
    max_norm: float = 0.001


TWO_BY_TWO, PRODUCTS = ShardingConfig(data=2), ShardingConfig(tensor=2)
TWICE = {"epochs": 2, "minibatches": 2}
CASES = {
    "tied": Case(update=TWICE, shares=((0, 2), (1,))),
    "untied": Case(untied(), "dapo+kl_cov", {"epochs": 2}, ((1,), (0, 2))),
    "lora": Case(tiny_model(lora=LoraConfig(rank=4)), update=TWICE, shares=((0, 2), (1,))),
    "not flat": Case(not_flat(), shares=((), (0, 1, 2))),
    "offloaded": Case(shares=((0,), (1, 2)), sharding=ShardingConfig(offload=True), max_norm=1e9),
    "four": Case(update=TWICE, shares=((0,), (), (2, 1), ())),
    "products": Case(qwen3(), shares=((0, 1, 2), (0, 1, 2)), sharding=PRODUCTS),
    "products in shards": Case(
        update=TWICE, shares=((0, 2), (0, 2), (1,), (1,)), sharding=PRODUCTS
    ),
    "two by two": Case(
        update=TWICE, shares=((), (0,), (2,), (1,)), sharding=ShardingConfig(data=2)
    ),
}


CRITICS = {
    "critic": (Case(sharding=ShardingConfig()), "model"),
    "critic of products": (Case(qwen3(), sharding=PRODUCTS), "model"),
    "critic's head": (Case(tiny_model(lora=LoraConfig(rank=4))), "head"),
}


def plain_update(**changes: int) -> UpdateConfig:
    """With Transformers' own layers in one process too: their norms are float32 in any type."""
    return UpdateConfig(fast_blocks=False, **changes)


def learner_of(case: Case, policy: Policy, ranks: Ranks = ALONE) -> Learner:
    return Learner(
        policy,
        OptimizerConfig(lr=1e-3, max_grad_norm=case.max_norm, weight_decay=0.1),
        plain_update(tokens_per_micro_batch=12, **case.update),
        Reference(policy),
        ranks=ranks,
    )


def policy_alone(case: Case) -> Policy:
    policy = load_policy(case.model)
    policy.model.to(torch.float64)
    return policy


def alone(case: Case) -> Learner:
    return learner_of(case, policy_alone(case))


def sharded(case: Case) -> Learner:
    return learner_of(case, *sharded_policy(case.model, case.sharding, dtype=torch.float64))


def share(groups: Sequence[int]) -> TrainBatch:
    """A rank's part of the rollout, in which every group keeps its place."""
    data = batch()
    own = [
        group if place in groups else TrainGroup(group.prompt_ids, [])
        for place, group in enumerate(data.groups)
    ]
    return TrainBatch(own, data.temperature)


def trained(case: Case, learner: Learner, groups: tuple[int, ...]) -> dict[str, Any]:
    """Metrics and weights of two rollouts, the reference made anew between them."""
    own = share(groups)
    objective = Objective.parse(case.spec).with_limit(16)
    metrics = [learner.update(own, objective, (0, 2))]
    learner.refresh_reference()
    metrics.append(learner.update(own, objective, (1, 2)))
    return {"metrics": metrics, "weights": weights_of(learner)}


def criticised(case: Case, kind: str, policy: Policy, ranks: Ranks, own: TrainBatch) -> Any:
    """PPO with a KL in the reward: figures, and what policy and critic weigh after a rollout."""
    optimizer = OptimizerConfig(lr=1e-3, max_grad_norm=case.max_norm)
    critic = Critic(policy, CriticConfig(kind=kind), optimizer, 12, ranks)
    update = plain_update(tokens_per_micro_batch=12)
    learner = Learner(policy, optimizer, update, Reference(policy), critic, ranks)
    objective = Objective.parse("ppo+kl_in_reward").with_limit(16)
    figures = []
    for step in range(2):
        told, judged = learner.judge(own, objective)
        figures.append({**judged, **learner.update(told, objective, (step, 2))})
    values = {
        name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        for name, p in critic.model.named_parameters()
    }
    return {"metrics": figures, "weights": weights_of(learner), "critic": values}


def imitated(policy: Policy, ranks: Ranks = ALONE) -> Any:
    """Two steps of SFT on five examples, two at a time, and two of DPO."""
    texts = [[*range(5 + n, 8 + n)] for n in range(5)]
    examples = [
        Example(t[:1], t[1:] * (n + 1), [0] + [1] * (2 * n + 1)) for n, t in enumerate(texts)
    ]
    common: dict[str, Any] = {
        "tokens_per_micro_batch": 8,
        "optimizer": OptimizerConfig(lr=1e-3),
        "fast_blocks": False,
    }
    config = SFTConfig(steps=2, batch_size=2, **common)
    trainer = SFTTrainer(policy, config, examples, 0, ranks)
    figures = [dict(trainer.step(step).metrics) for step in range(2)]
    pairs = [Pair(t[:1], t[1:], t[:1] * (n + 1)) for n, t in enumerate(texts)]
    aims = PreferenceConfig(steps=2, batch_size=3, **common)
    prefer = PreferenceTrainer(policy, aims, pairs, 0, ranks=ranks)
    figures += [dict(prefer.step(step).metrics) for step in range(2)]
    for found in figures:
        del found["tokens_per_second"]
    return {"metrics": figures, "weights": weights_of(prefer.learner)}


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {
        name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach()
        for name, p in learner.policy.model.named_parameters()
        if p.requires_grad
    }


def halves(rank: int, sharding: ShardingConfig, lora: LoraConfig | None = None) -> dict[str, Any]:
    """A model that is computed with in bfloat16: the first pass, and weights after small steps."""
    policy, ranks = sharded_policy(tiny_model(dtype="bfloat16", lora=lora), sharding)
    optimizer = OptimizerConfig(lr=1e-6)
    learner = Learner(policy, optimizer, plain_update(), ranks=ranks)
    data = batch()
    own = TrainBatch(data.groups[:1] if rank else data.groups[1:], data.temperature)
    before = ranks.gathered([row.cpu() for row in learner.logprobs(own)])
    metrics = learner.update(own, Objective.parse("grpo").with_limit(16), (0, 1))
    shares = {n: local(p) for n, p in policy.model.named_parameters()}
    return {
        "logprobs": [row for rows in reversed(before) for row in rows],
        "metrics": metrics,
        "masters": weights_of(learner),
        "handed out": dict(learner.weights()),
        "cut": {n: (tuple(t.shape), t.dtype) for n, t in shares.items()},
    }


def begun(learner: Learner, own: TrainBatch) -> None:
    """A rollout and a new reference: all that a checkpoint has to keep is there."""
    learner.update(own, Objective.parse("grpo+kl").with_limit(16), (0, 2))
    learner.refresh_reference()


def resumed(learner: Learner, own: TrainBatch, folder: Path) -> dict[str, torch.Tensor]:
    """Goes on from the newest checkpoint."""
    found = load_checkpoint(folder)
    assert found is not None and found.step == 1 and found.state == {"place": 7}
    learner.load_state_tensors(found.tensors)
    learner.update(own, Objective.parse("grpo+kl").with_limit(16), (1, 2))
    return weights_of(learner)


SAVED = {
    "saved": Case(sharding=TWO_BY_TWO),
    "saved lora": Case(tiny_model(lora=LoraConfig(rank=4)), sharding=TWO_BY_TWO),
    "saved products": Case(qwen3(), sharding=PRODUCTS),
}
"""How four ranks have them; two have them in plain shards, and the last one as products too."""


def experts() -> ModelConfig:
    whole = tiny_model()
    init = {**whole.init, "num_local_experts": 4, "num_experts_per_tok": 2}
    return whole.model_copy(update={"path": "init:mixtral", "init": init})


def falcon() -> ModelConfig:
    """Its attention cannot be replaced."""
    return tiny_model().model_copy(update={"path": "init:falcon", "init": {}})


def saved(rank: int, folder: Path) -> None:
    """Checkpoints and models of four ranks, two by two."""
    for name, model in (("experts", experts()), ("falcon", falcon())):
        save_policy(sharded_policy(model, ShardingConfig())[0], folder / f"{name} model")
    for name, case in SAVED.items():
        learner = sharded(case)
        place, places = case.sharding.share_of(rank, 4)
        own = share(range(place, 3, places))
        begun(learner, own)
        for step in (0, 1):
            state = Checkpoint(step, learner.state_tensors(), {"place": 7})
            save_checkpoint(folder / name, state, keep=1)
        save_policy(learner.policy, folder / f"{name} model")
        if case.model.lora is not None:
            apart = replace(learner.policy, adapter_on=str(folder / "base"))
            save_policy(apart, folder / f"{name} adapter")


def read(folder: Path) -> dict[str, Any]:
    """A saved model whose files every rank reads its own rows of, with new adapters; and one of
    experts, which lie otherwise in the file than in the model.
    """
    rows, spread = sharded_loading.read_rows, sharded_loading._spread_from_first
    called: list[str] = []
    sharded_loading.read_rows = lambda *a: (called.append("rows"), rows(*a))[1]
    sharded_loading._spread_from_first = lambda *a: (called.append("spread"), spread(*a))[1]
    found: dict[str, Any] = {}
    adapters, plain = LoraConfig(rank=4), ShardingConfig()
    for name, lora, sharding in (
        ("saved", None, plain),
        ("saved", adapters, plain),
        ("experts", None, plain),
        ("falcon", None, plain),
        ("saved products", None, PRODUCTS),
    ):
        model = ModelConfig(path=str(folder / f"{name} model"), lora=lora)
        policy, _ = sharded_policy(model, sharding)
        with torch.no_grad():
            rows_of = score(policy, [[7, 8, 9]], [[[10, 11], [12, 13, 14]]])[0]
        weights = {n: p.full_tensor() for n, p in policy.model.named_parameters()}
        found[f"{name} {lora is not None}"] = {
            "by": called.pop(),
            "flat": policy.not_flat,
            "logprobs": rows_of,
            "weights": weights,
            "cut": {n: tuple(local(p).shape) for n, p in policy.model.named_parameters()},
        }
    return found


def to_the_bit(own: TrainBatch, folder: Path) -> bool:
    """Whether ranks that go on from a checkpoint of theirs end where they would have ended."""
    objective = Objective.parse("grpo").with_limit(16)

    def fresh() -> Learner:
        policy, ranks = sharded_policy(tiny_model(), ShardingConfig())
        update = plain_update(tokens_per_micro_batch=12)
        return Learner(policy, OptimizerConfig(lr=1e-3), update, ranks=ranks)

    learner, other = fresh(), fresh()
    learner.update(own, objective, (0, 2))
    save_checkpoint(folder / "bits", Checkpoint(1, learner.state_tensors(), {}))
    learner.update(own, objective, (1, 2))
    found = load_checkpoint(folder / "bits")
    assert found is not None
    other.load_state_tensors(found.tensors)
    other.update(own, objective, (1, 2))
    ours, theirs = other.state_tensors(), learner.state_tensors()
    same = all(torch.equal(local(ours[name]), local(theirs[name])) for name in theirs)
    said = [False, False]
    dist.all_gather_object(said, same and ours.keys() == theirs.keys())
    return all(said)


def dying(rank: int, folder: Path) -> dict[str, Any]:
    """A rank is killed while a checkpoint is written."""
    mesh = init_device_mesh("cpu", (2,))
    tensors = {"weight": distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])}
    save_checkpoint(folder / "dying", Checkpoint(1, tensors, {}))
    if rank == 1:
        checkpoint.save_shards = lambda *_: os._exit(9)
    error = ""
    try:
        save_checkpoint(folder / "dying", Checkpoint(2, tensors, {}))
    except Exception as raised:
        error = type(raised).__name__
    torch.save(error, folder / "dying.pt")
    os._exit(0)


def failing(folder: Path, rank: int) -> dict[str, Any]:
    """One rank's disk is full: all hear of it, and the checkpoint before stays."""
    mesh = init_device_mesh("cpu", (2,))
    tensors = {"weight": distribute_tensor(torch.arange(6.0), mesh, [Shard(0)])}
    save_checkpoint(folder / "failing", Checkpoint(1, tensors, {}))
    whole = checkpoint.save_shards

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    finish = checkpoint._finish
    checkpoint._finish = full if rank == 0 else finish
    try:
        save_checkpoint(folder / "failing", Checkpoint(2, tensors, {}))
        raised = ""
    except (OSError, UserError) as error:
        raised = str(error)
    checkpoint._finish, checkpoint.save_shards = finish, whole
    said: list[str] = ["", ""]
    dist.all_gather_object(said, raised)
    return {"said": said, "left": sorted(p.name for p in (folder / "failing").iterdir())}


def two(rank: int, folder: Path) -> dict[str, Any]:
    names = [name for name, case in CASES.items() if len(case.shares) == 2]
    found: dict[str, Any] = {
        name: trained(CASES[name], sharded(CASES[name]), CASES[name].shares[rank]) for name in names
    }
    found["read"] = read(folder)
    found["failing"] = failing(folder, rank)
    found["imitated"] = imitated(
        *sharded_policy(tiny_model(), ShardingConfig(), dtype=torch.float64)
    )
    found["halves"] = halves(rank, ShardingConfig())
    found["half lora"] = halves(rank, ShardingConfig(offload=True), LoraConfig(rank=4))
    for name, (case, kind) in CRITICS.items():
        policy, ranks = sharded_policy(case.model, case.sharding, dtype=torch.float64)
        place, places = case.sharding.share_of(rank, 2)
        own = share(range(place, 3, places))
        found[name] = criticised(case, kind, policy, ranks, own)
    for name, case in SAVED.items():
        case = replace(case, sharding=ShardingConfig())
        found[name] = resumed(sharded(case), share(range(rank, 3, 2)), folder / name)
    found["to the bit"] = to_the_bit(share(range(rank, 3, 2)), folder)
    name = "saved products"
    found["products of two"] = resumed(sharded(SAVED[name]), batch(), folder / name)
    return found


def four(rank: int, folder: Path) -> dict[str, Any]:
    saved(rank, folder)
    return {
        name: trained(CASES[name], sharded(CASES[name]), CASES[name].shares[rank])
        for name in ("four", "two by two", "products in shards")
    }


def main(rank: int, size: int, folder: Path, run: Callable[[int, Path], dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(250, exit=True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store-{run.__name__}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=120),
    )
    found = run(rank, folder)
    if rank == 0:
        torch.save(found, folder / f"found-{size}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    for size, run in ((4, four), (2, two), (2, dying)):
        ranks = [
            fork.Process(target=main, args=(rank, size, Path(sys.argv[1]), run))
            for rank in range(size)
        ]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(280)
        if [each.exitcode for each in ranks] != [0] + [9 * (run is dying)] * (size - 1):
            for each in ranks:
                each.kill()
            sys.exit(1)
