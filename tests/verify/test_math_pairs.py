"""Every kind of answer, by pairs whose verdict is known from how they are made: no near miss is
accepted and no rewriting refused.
"""

import math_pairs
import math_pairs_forms
import math_pairs_numbers
import pytest

from lydite.types import Outcome
from lydite.verify.algebra import equal
from lydite.verify.answer import read_answer
from lydite.verify.math import check_reference, grade

assert math_pairs_forms and math_pairs_numbers  # they add their kinds


def accepted(gold: str, completion: str) -> bool:
    answer = read_answer(completion).text
    return answer is not None and grade(gold, answer, equal).outcome is Outcome.CORRECT


@pytest.mark.parametrize("kind", math_pairs.KINDS)
def test_pairs(kind: str) -> None:
    pairs = math_pairs.pairs(kind)
    assert len(pairs) > 50
    share = max(1, len(pairs) // 150)
    wrong = [pair for pair in pairs[::share] if accepted(*pair[:2]) is not pair[2]]
    assert not wrong


@pytest.mark.parametrize("kind", math_pairs.KINDS)
def test_every_gold_can_be_checked(kind: str) -> None:
    golds = {gold for gold, _, _ in math_pairs.pairs(kind)}
    faults = [g for g in golds if check_reference(g, equal).outcome is not Outcome.CORRECT]
    assert not faults
