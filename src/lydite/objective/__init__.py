"""What a step of reinforcement learning maximises: GRPO and its family, composable.

The room sees rewards, log-probabilities and masks; never text, never tokens. One file for each
part: ``credit``, ``advantage``, ``group_filter`` and ``overlong`` turn rewards into advantages;
``surrogate``, ``token_filter``, ``kl``, ``correction``, ``entropy`` and ``aggregate`` turn
log-probabilities into what ``loss`` adds up. ``presets`` and ``patches`` name what is published,
``spec`` reads them, ``choices`` and ``settings`` say what may be set, ``meaning`` refuses what has
none, ``gae`` and ``value`` are a critic's, ``objective`` joins all; ``describe``, ``explain`` and
``picture`` say what one is.
"""

from lydite.objective.aggregate import Counts
from lydite.objective.describe import describe
from lydite.objective.metrics import Metrics
from lydite.objective.objective import Objective
from lydite.objective.patches import PATCHES
from lydite.objective.presets import PRESETS

__all__ = ["PATCHES", "PRESETS", "Counts", "Metrics", "Objective", "describe"]
