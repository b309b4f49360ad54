"""Attacks on reward functions: what must be refused, what must be accepted, how they must behave.

Attacks are data: each makes completions from a problem and its reference, whose right verdict is
known because of how they were made. None of them runs anything here; programs among them do no
harm where a grader runs them unprotected: they lie, exit or loop, and touch no file.
"""

from lydite.verify.audit.assess import Assessment, Finding, Plan, assess
from lydite.verify.audit.attack import Attack, Case, Target, Want
from lydite.verify.audit.behaviour import Behaviour

__all__ = [
    "Assessment",
    "Attack",
    "Behaviour",
    "Case",
    "Finding",
    "Plan",
    "Target",
    "Want",
    "assess",
]
