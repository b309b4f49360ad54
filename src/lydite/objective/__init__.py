"""What a step of reinforcement learning maximises: GRPO and its family, composable.

The room sees rewards, log-probabilities and masks; never text, never tokens. One file for each
part: ``advantage``, ``group_filter`` and ``overlong`` turn rewards into advantages; ``surrogate``,
``kl``, ``correction`` and ``aggregate`` turn log-probabilities into a loss; ``presets`` names the
published combinations, ``spec`` reads them, ``objective`` joins all, ``describe`` says what one is.
"""

from lydite.objective.aggregate import Counts
from lydite.objective.describe import describe
from lydite.objective.metrics import Metrics
from lydite.objective.objective import Objective
from lydite.objective.presets import PATCHES, PRESETS

__all__ = ["PATCHES", "PRESETS", "Counts", "Metrics", "Objective", "describe"]
