"""Computer algebra on text that a model wrote: Math-Verify, for worker processes only.

Math-Verify's own timeouts are signal alarms, which work in no thread but the main one and cannot
interrupt C code, so they are off: the pool's wall limit replaces them. Its word is checked where
it is known to be too kind: what it calls equal must be equal exactly, or to 25 digits, or to 6
where a decimal was written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lydite.types import Outcome
from lydite.verify.math import UnreadableAnswer, UnreadableReference, check_reference, grade


def grader(setup: object) -> Callable[[Any], dict[str, str]]:
    """A pool handler, everything imported and warm: ``(gold, answer, type, tolerance,
    unevaluated)`` to ``{"outcome", "detail"}``.

    Without an answer (``None``) it is the reference that is checked.
    """
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    equal(r"\frac{1}{2}", r"\sqrt{x}")

    def grade_pair(payload: Any) -> dict[str, str]:
        gold, answer, kind, tolerance, unevaluated = payload
        try:
            decision = (
                check_reference(gold, equal, kind)
                if answer is None
                else grade(gold, answer, equal, kind, tolerance, unevaluated)
            )
        except MemoryError:
            raise
        except Exception as error:
            # References are tested before anything is scored, so it is the answer that broke it.
            detail = f"computer algebra failed on the answer ({type(error).__name__})"
            return {"outcome": Outcome.UNPARSEABLE.value, "detail": detail}
        return {"outcome": decision.outcome.value, "detail": decision.detail}

    return grade_pair


def equal(gold: str, answer: str) -> bool:
    """Whether two LaTeX expressions are equal. Not symmetric: the reference comes first.

    Raises:
        UnreadableReference, UnreadableAnswer: one of them does not parse.
    """
    import math_verify

    ours, theirs = _parse(gold), _parse(answer)
    if ours is None:
        raise UnreadableReference
    if theirs is None:
        raise UnreadableAnswer
    if _unevaluated(theirs) and not _unevaluated(ours):
        return False
    if not math_verify.verify(ours, theirs, timeout_seconds=None):
        return False
    return _close(ours, theirs, approximate="." in gold or "." in answer)


def _parse(text: str) -> Any:
    """The expression, or ``None``. Boxed, because outside a box Math-Verify reads ``2\\sqrt{3}``
    as 2.
    """
    import math_verify

    parsed = math_verify.parse(
        f"\\boxed{{{text}}}",
        extraction_config=[math_verify.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed[0] if parsed else None


def _unevaluated(expression: Any) -> bool:
    import sympy

    kinds = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative)
    return isinstance(expression, sympy.Basic) and bool(expression.has(*kinds))


def _close(ours: Any, theirs: Any, approximate: bool) -> bool:
    """A second look at two numbers that were called equal; anything else stands."""
    import sympy

    if not (isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr)):
        return True
    ours, theirs = ours.doit(), theirs.doit()
    if not (ours.is_number and theirs.is_number):
        return True
    if ours.is_Rational and theirs.is_Rational:
        return bool(ours == theirs)
    # Beyond 16 digits evaluation, or cancellation would leave nothing of a small difference.
    difference = abs((ours - theirs).evalf(60))
    scale = max(abs(ours.evalf(60)), abs(theirs.evalf(60)))
    tolerance = sympy.Float("1e-6") if approximate else sympy.Float("1e-25")
    return bool(difference <= tolerance * scale)
