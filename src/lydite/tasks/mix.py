"""Several tasks as one, each with its share."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

from lydite.tasks.task import RowsConfig, TaskData, select


def mix(
    name: str,
    config: RowsConfig,
    parts: Mapping[str, TaskData],
    weights: Mapping[str, float],
    seed: int,
) -> TaskData:
    """As many problems as there can be with these shares and none twice, in an order of the seed.

    Of a part that has more than its share a random subset is taken; the notes say how many. Ids
    have the part's name in front, so that no two parts share one.

    Raises:
        UserError: no problem is left.
    """
    size = min(len(parts[part].problems) / weight for part, weight in weights.items())
    problems, told = [], []
    for part, weight in weights.items():
        ours = list(parts[part].problems)
        # A hair above, for 3 · (10 / 3) may come out below 10.
        count = math.floor(size * weight + 1e-9)
        random.Random(f"{seed}:{name}:{part}").shuffle(ours)
        problems += [replace(problem, id=f"{part}/{problem.id}") for problem in ours[:count]]
        told.append(f"{count} of {len(ours)} of {part}")
    random.Random(f"{seed}:{name}").shuffle(problems)
    return select(name, config, problems, [f"{name}: a mix of {', '.join(told)}"])
