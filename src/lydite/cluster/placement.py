"""Which processes a cluster's settings ask for, and whether the cluster has what they take. Loads
without ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lydite.cluster.config import ClusterConfig, Resources
from lydite.config import UserError


@dataclass(frozen=True, slots=True)
class Role:
    """``count`` processes of one kind; ``fewest`` of them must be there."""

    name: str
    count: int
    fewest: int
    each: Resources
    most: int

    @property
    def row(self) -> str:
        """For people."""
        count = f"{self.count}" if self.most == self.count else f"{self.count} to {self.most}"
        return f"{self.name}: {count} × {describe(self.each.cpus, self.each.gpus)}"


def roles(config: ClusterConfig) -> tuple[Role, ...]:
    """The kinds of processes."""
    ranks = config.learner.ranks
    if config.mode == "colocated":
        return (Role("learner and rollout", ranks, ranks, config.learner, ranks),)
    return (
        Role("learner", ranks, ranks, config.learner, ranks),
        Role("rollout", config.workers, config.fewest, config.rollout, config.most),
    )


def describe(cpus: float, gpus: float) -> str:
    """``2 CPUs and 1 GPU``."""
    parts = [f"{cpus:g} CPU{'' if cpus == 1 else 's'}"]
    if gpus:
        parts.append(f"{gpus:g} GPU{'' if gpus == 1 else 's'}")
    return " and ".join(parts)


def total(config: ClusterConfig, fewest: bool = False) -> tuple[float, float]:
    """CPUs and GPUs of all processes at the start, or of the fewest that can go on."""
    found = [(role.fewest if fewest else role.count, role.each) for role in roles(config)]
    return sum(n * r.cpus for n, r in found), sum(n * r.gpus for n, r in found)


def check_room(
    config: ClusterConfig, nodes: Mapping[str, tuple[float, float]], where: str
) -> str | None:
    """Whether machines, each with so many CPUs and GPUs, have room for the processes; gives what to
    say of those that will only find room later.

    Raises:
        UserError: not even for the fewest, or a single process fits on no machine.
    """
    has = sum(cpus for cpus, _ in nodes.values()), sum(gpus for _, gpus in nodes.values())
    have = f"{where} has {describe(*has)} on {len(nodes)} machine{'' if len(nodes) == 1 else 's'}"
    for role in roles(config):
        each = role.each
        if not any(c >= each.cpus and g >= each.gpus for c, g in nodes.values()):
            raise UserError(
                f"cluster.{role.name.split()[0]}: each takes {describe(each.cpus, each.gpus)}, and "
                f"no machine has them ({have}); lower cpus or gpus"
            )
    need = total(config, fewest=True)
    if need[0] > has[0] or need[1] > has[1]:
        raise UserError(
            f"cluster: asks for {describe(*need)} at least, and {have}; lower learner.ranks or "
            "rollout.workers, or add machines"
        )
    wanted = total(config)
    if wanted[0] > has[0] or wanted[1] > has[1]:
        return f"cluster: asks for {describe(*wanted)}, and {have}; going on with fewer workers"
    return None
