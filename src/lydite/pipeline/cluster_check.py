"""What ``--dry-run`` says of a recipe's cluster: where which process goes, how much memory each
takes, and what is missing. Ray is not started.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from operator import or_

from lydite.cluster.config import ClusterConfig
from lydite.cluster.placement import check_room, describe, roles, total
from lydite.cluster.session import check_installed
from lydite.config import UserError
from lydite.model.estimate import MemoryEstimate, Workload, estimate_memory
from lydite.model.loading import ModelConfig
from lydite.pipeline.recipe import Recipe
from lydite.pipeline.stages.stage import Checks, Finding


def cluster_checks(recipe: Recipe) -> Checks:
    """Of a recipe with a cluster; of another, none."""
    cluster = recipe.cluster
    if cluster is None:
        return
    yield "cluster", partial(_placement, recipe, cluster)
    for name, model in _models(recipe):
        whose = "" if name == "model" else f" of {name}"
        yield f"memory of each process{whose}", partial(_memory, recipe, cluster, model)


def _placement(recipe: Recipe, cluster: ClusterConfig) -> Finding:
    check_installed()
    on_it = [stage.name for stage in recipe.stages if stage.on_cluster]
    rest = [stage.name for stage in recipe.stages if not stage.on_cluster]
    if not on_it:
        raise UserError("cluster: no stage of kind rl is there to use it; leave it out")
    lines = [role.row for role in roles(cluster)]
    lines.append(f"on it: {', '.join(on_it)}")
    if rest:
        lines.append(f"in the run's own process: {', '.join(rest)}")
    asked = describe(*total(cluster))
    if cluster.address is not None:
        text = f"{cluster.mode}, {asked} of the Ray at {cluster.address}"
        lines.append("whether it has them is seen when the run starts")
    else:
        cores = os.cpu_count() or 1
        wanted = total(cluster)[0]
        # A Ray that is started here lets processes share cores.
        check_room(cluster, {"here": (max(cores, wanted), float(_gpus()))}, "this machine")
        text = f"{cluster.mode}, {asked} of a Ray that is started here"
        if wanted > cores:
            lines.append(f"this machine has {cores} cores, which the processes share")
    return text, tuple(lines)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _models(recipe: Recipe) -> Iterator[tuple[str, ModelConfig]]:
    """The models that stages on the cluster start from, each once."""
    seen: list[ModelConfig] = []
    for stage in recipe.stages:
        model = recipe.models()[stage.name]
        if stage.on_cluster and model not in seen:
            seen.append(model)
            yield "model" if model == recipe.model else stage.name, model


def _memory(recipe: Recipe, cluster: ClusterConfig, model: ModelConfig) -> Finding:
    models = recipe.models()
    work = reduce(
        or_,
        (
            stage.workload(recipe.engine)
            for stage in recipe.stages
            if stage.on_cluster and models[stage.name] == model
        ),
        Workload(0, 0),
    )
    share = -(-work.cache_tokens // cluster.workers)
    sharding = cluster.learner.sharding
    if sharding is not None and sharding.recompute:
        model = model.model_copy(update={"gradient_checkpointing": True})
    found = estimate_memory(model, replace(work, cache_tokens=share, copies=0), cluster.device)
    learner, rollout = by_process(found, cluster)
    gib = 2**30
    each = [f"{name} {size / gib:.2f} GiB" for name, size in (("learner", learner), *rollout)]
    lines = [
        f"each learner rank: {learner / gib:.2f} GiB (weights, gradients, AdamW, activations)",
        *(f"each rollout worker: {s / gib:.2f} GiB (weights, keys and values)" for _, s in rollout),
        f"object store: {2 * found.weights / gib:.2f} GiB on machines with learner ranks or "
        "rollout workers, while weights change hands",
    ]
    if cluster.mode == "colocated":
        lines.pop()
    return f"about {', '.join(each)}", tuple(lines)


def by_process(
    found: MemoryEstimate, cluster: ClusterConfig
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Bytes of a learner rank, and by name those of a rollout worker where they are apart."""
    state = found.weights + found.gradients + found.optimizer + found.reference + found.critic
    if (sharding := cluster.learner.sharding) is not None:
        kept = state // sharding.parts(cluster.learner.ranks)
        apart = sharding.offload and cluster.device != "cpu"  # In the machine's own memory.
        state = found.gathered // sharding.tensor + (0 if apart else kept)
    if cluster.mode == "colocated":
        # One that has shards samples from whole weights beside them.
        beside = 0 if sharding is None else found.weights
        return state + beside + max(found.packed + found.cache, found.activations), ()
    sampling = found.weights + found.packed + found.cache
    return state + found.activations, (("rollout", sampling),)
