"""Whether a mathematical answer equals the reference.

Both are typed first (:mod:`lydite.verify.value`) and compared kind by kind, numbers as exact
fractions. Only two expressions reach computer algebra, through the ``algebra`` argument:
Math-Verify in a killable worker (:mod:`lydite.verify.algebra`), never this process. An answer that
restates the problem instead of solving it (an unevaluated sum, limit, gcd …) is refused unless the
reference is written that way too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lydite.types import Outcome
from lydite.verify import notation
from lydite.verify.limits import too_large
from lydite.verify.number import read_number, same_number
from lydite.verify.relation import assignment, chain, direction, interval
from lydite.verify.value import (
    NAME,
    Based,
    Expression,
    Items,
    Matrix,
    Quantity,
    Ratio,
    Relation,
    Union,
    Value,
    Words,
    read_value,
)

Algebra = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Decision:
    """What comparing an answer to the reference came to, with one sentence for a person."""

    outcome: Outcome
    detail: str = ""


class NeedsAlgebra(Exception):
    """Raised in place of computer algebra where none may run."""


class UnreadableReference(Exception):
    """Computer algebra cannot read the reference."""


class UnreadableAnswer(Exception):
    """Computer algebra cannot read the answer."""


def refuse_algebra(gold: str, answer: str) -> bool:
    """An ``algebra`` for processes that must not be stuck: always raises :class:`NeedsAlgebra`."""
    raise NeedsAlgebra


def grade(gold: str, answer: str, algebra: Algebra) -> Decision:
    """Compares an answer as the model wrote it with the reference as the data has it.

    ``algebra(gold, answer)`` decides about two expressions that are not plainly equal; it may raise
    :class:`UnreadableAnswer` (the outcome is ``unparseable``) or :class:`UnreadableReference`
    (``ungradable``).
    """
    gold_text, answer_text = notation.normalise(gold), notation.normalise(answer)
    if not gold_text:
        return Decision(Outcome.UNGRADABLE, "the reference is empty")
    if not answer_text:
        return Decision(Outcome.UNPARSEABLE, "the final answer is empty")
    if notation.squeeze(gold_text) == notation.squeeze(answer_text):
        return Decision(Outcome.CORRECT)
    letter = _letter_decision(gold_text, answer_text)
    if letter is not None:
        return letter
    if (reason := too_large(gold_text)) and read_number(gold_text) is None:
        return Decision(Outcome.UNGRADABLE, f"the reference is too large to check: {reason}")
    if (reason := too_large(answer_text)) and read_number(answer_text) is None:
        return Decision(Outcome.UNPARSEABLE, f"the answer is too large to check: {reason}")
    if restated := _restated(gold_text, answer_text):
        return Decision(Outcome.WRONG, f"the answer is left unevaluated ({restated})")
    try:
        same = _same(read_value(gold_text), read_value(answer_text), algebra)
    except UnreadableAnswer:
        return Decision(Outcome.UNPARSEABLE, "the answer cannot be read as mathematics")
    except UnreadableReference:
        return Decision(Outcome.UNGRADABLE, "the reference cannot be read as mathematics")
    return Decision(Outcome.CORRECT if same else Outcome.WRONG)


def check_reference(gold: str, algebra: Algebra) -> Decision:
    """Whether answers can be compared with this reference at all: ``correct``, or ``ungradable``
    and why.

    Comparing it with itself would only compare two equal texts, so every expression in it goes to
    ``algebra``.
    """
    text = notation.normalise(gold)
    if not text:
        return Decision(Outcome.UNGRADABLE, "the reference is empty")
    if read_number(text) is None and (reason := too_large(text)):
        return Decision(Outcome.UNGRADABLE, f"the reference is too large to check: {reason}")
    try:
        same = all(algebra(part, part) for part in _expressions(read_value(text)))
    except (UnreadableReference, UnreadableAnswer):
        return Decision(Outcome.UNGRADABLE, "the reference cannot be read as mathematics")
    return (
        Decision(Outcome.CORRECT)
        if same
        else Decision(Outcome.UNGRADABLE, "the reference does not equal itself")
    )


def _expressions(value: Value) -> list[str]:
    """The parts of a value that only algebra can read."""
    if isinstance(value, Expression):
        plain = r"\ldots" in value.text or r"\infty" in value.text or _CHOICE.fullmatch(value.text)
        return [] if plain else [value.text]
    if isinstance(value, Relation):
        return [part for member in value.members for part in _expressions(read_value(member))]
    parts: Sequence[Value] = ()
    if isinstance(value, Items):
        parts = value.items
    elif isinstance(value, Union | Ratio):
        parts = value.parts
    elif isinstance(value, Matrix):
        parts = [cell for row in value.rows for cell in row]
    return [expression for part in parts for expression in _expressions(part)]


_CHOICE = re.compile(r"\(?([A-J])\)?")
_CHOSEN = re.compile(r"(?:\(([A-J])\)|([A-J])(?:[.:)]|\s*\Z))(.*)", re.DOTALL)


def _letter_decision(gold: str, answer: str) -> Decision | None:
    """Multiple choice: a reference of one letter against ``(B)``, ``B. twelve`` or ``B``."""
    wanted = _CHOICE.fullmatch(notation.open_text(gold))
    chosen = _CHOSEN.fullmatch(notation.open_text(answer))
    if wanted is None or chosen is None:
        return None
    if re.search(r"\(?\b[A-J]\b\)?[,.:)]|\([A-J]\)", chosen[3]):
        return Decision(Outcome.WRONG, "the answer names more than one choice")
    same = wanted[1] == (chosen[1] or chosen[2])
    return Decision(Outcome.CORRECT if same else Outcome.WRONG)


_UNEVALUATED = re.compile(
    r"\\(sum|prod|int|iint|oint|lim|limsup|liminf|gcd|lcm|max|min|sup|inf|det|bmod|pmod|mod|Pr|deg|dim)(?![A-Za-z])"
    r"|\\operatorname\*?\{\s*([a-z]+)\s*\}|\b(gcd|lcm|sum|max|min|integral|limit|mod)\s*\("
)


def _restated(gold: str, answer: str) -> str | None:
    """The operation that an answer leaves to be done and the reference does not mention."""
    for match in _UNEVALUATED.finditer(answer):
        name = next(group for group in match.groups() if group)
        if name not in gold and name not in (
            "sin",
            "cos",
            "tan",
            "cot",
            "sec",
            "csc",
            "arcsin",
            "arccos",
            "arctan",
        ):
            return name
    return None


def _same(gold: Value, answer: Value, algebra: Algebra) -> bool:
    gold, answer = _assigned(gold, answer, algebra)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relation(gold, answer, algebra)
    if isinstance(gold, Quantity) and isinstance(answer, Quantity):
        return _same_unit(gold.unit, answer.unit) and same_number(gold.number, answer.number)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return (
            isinstance(gold, Words | Expression)
            and isinstance(answer, Words | Expression)
            and _text(gold) == _text(answer)
        )
    if isinstance(gold, Items) and isinstance(answer, Items):
        return _same_items(gold, answer, algebra)
    if isinstance(gold, Union) and isinstance(answer, Union):
        return _same_bag(gold.parts, answer.parts, algebra)
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        return [len(row) for row in gold.rows] == [len(row) for row in answer.rows] and all(
            _same_list(a, b, algebra) for a, b in zip(gold.rows, answer.rows, strict=True)
        )
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        return _same_ratio(gold, answer, algebra)
    if isinstance(gold, Based) or isinstance(answer, Based):
        return _same_based(gold, answer)
    if isinstance(gold, Quantity | Expression) and isinstance(answer, Quantity | Expression):
        return _same_unit(gold.unit, answer.unit) and _same_expression(gold, answer, algebra)
    return False


def _text(value: Words | Expression) -> str:
    return value.text if isinstance(value, Words) else notation.plain_words(value.text)


def _same_unit(gold: str | None, answer: str | None) -> bool:
    """The answer may leave the unit out, and may add one that the reference does not state; it may
    not change it.
    """
    return gold is None or answer is None or gold == answer


def _written(value: Quantity | Expression) -> str:
    if isinstance(value, Expression):
        return value.text
    number = value.number
    fraction = f"\\frac{{{number.value.numerator}}}{{{number.value.denominator}}}"
    return str(number.value.numerator) if number.value.denominator == 1 else fraction


def _same_expression(
    gold: Quantity | Expression, answer: Quantity | Expression, algebra: Algebra
) -> bool:
    ours, theirs = _written(gold), _written(answer)
    if notation.squeeze(ours) == notation.squeeze(theirs):
        return True
    if isinstance(gold, Quantity) and isinstance(answer, Expression) and NAME.fullmatch(theirs):
        return False
    if _prose(theirs) and not _prose(ours):
        return False
    for text in (ours, theirs):
        if r"\ldots" in text or r"\infty" in text:
            return False
    if any(
        isinstance(v, Quantity) and v.number.places is not None and v.number.significant < 6
        for v in (gold, answer)
    ):
        # A short decimal is the number it says, so it equals no surd; it may still equal 1/2 · 5.
        return algebra(ours, theirs)
    return algebra(_decimal(gold), _decimal(answer))


_PROSE = re.compile(
    r"\\(?:text|mathrm|mbox)[a-z]*\s*\{[^{}]*[A-Za-z]{2}"
    r"|(?<![\\A-Za-z])[A-Za-z]{2,} [A-Za-z]{2}"
    r"|\?|[\d)}]\s*_"
)


def _prose(text: str) -> bool:
    """Whether words, a question mark or a number's subscript stand in the expression.

    Math-Verify drops these, so "7 is wrong" would be 7.
    """
    return _PROSE.search(text) is not None


def _decimal(value: Quantity | Expression) -> str:
    """As :func:`_written`, a long decimal kept one, so that algebra may see it as a rounding."""
    if isinstance(value, Quantity) and value.number.places is not None:
        shown = value.number.value * 10**value.number.places
        digits = str(abs(shown.numerator)).rjust(value.number.places + 1, "0")
        cut = len(digits) - value.number.places
        return ("-" if shown < 0 else "") + digits[:cut] + "." + digits[cut:]
    return _written(value)


def _same_list(gold: Sequence[Value], answer: Sequence[Value], algebra: Algebra) -> bool:
    return len(gold) == len(answer) and all(
        _same(a, b, algebra) for a, b in zip(gold, answer, strict=True)
    )


def _same_bag(gold: Sequence[Value], answer: Sequence[Value], algebra: Algebra) -> bool:
    """Equal in some order. Plain differences are tried before anything costs algebra."""
    left = list(answer)
    if len(gold) != len(left):
        return False
    for wanted in sorted(gold, key=lambda value: isinstance(value, Expression)):
        found = next((i for i, value in enumerate(left) if _same(wanted, value, algebra)), None)
        if found is None:
            return False
        del left[found]
    return True


def _same_items(gold: Items, answer: Items, algebra: Algebra) -> bool:
    named_gold, named_answer = _named(gold), _named(answer)
    if named_gold and named_answer:
        return named_gold.keys() == named_answer.keys() and all(
            _same(named_gold[name], named_answer[name], algebra) for name in named_gold
        )
    gold, answer = _unnamed(gold, named_gold), _unnamed(answer, named_answer)
    unordered = ("", "{}")
    if gold.brackets in unordered and answer.brackets in unordered:
        return _same_bag(gold.items, answer.items, algebra)
    bare = "" in (gold.brackets, answer.brackets) and "()" in (gold.brackets, answer.brackets)
    return (gold.brackets == answer.brackets or bare) and _same_list(
        gold.items, answer.items, algebra
    )


def _named(items: Items) -> dict[str, Value]:
    """``x=2, y=-1`` by name; empty unless every item is an assignment and the names differ."""
    named: dict[str, Value] = {}
    for item in items.items:
        parts = assignment(item)
        if parts is None or parts[0] in named:
            return {}
        named[parts[0]] = read_value(parts[1])
    return named


def _unnamed(items: Items, named: dict[str, Value]) -> Items:
    """The items without the names: ``n=2,3,4`` and ``x=2, x=-3`` are lists, ``x=2, y=-1`` is in
    that order.
    """
    if named:
        return Items(tuple(named.values()), items.brackets or "()")
    parts = [assignment(item) for item in items.items]
    names = {part[0] for part in parts if part is not None}
    if len(names) != 1 or (None in parts and parts[0] is None):
        return items
    return Items(
        tuple(
            item if part is None else read_value(part[1])
            for item, part in zip(items.items, parts, strict=True)
        ),
        items.brackets,
    )


def _assigned(gold: Value, answer: Value, algebra: Algebra) -> tuple[Value, Value]:
    """Opens equations where only one side is one: the value of a chain whose members agree (4 + 6
    = 10 is 10; 11 = 10 is nothing), and of an assignment. ``p(x) = 0`` has no value, so it never
    answers 0.
    """
    if (
        not isinstance(gold, Relation)
        and isinstance(answer, Relation)
        and set(answer.operators) == {"="}
    ):
        members = answer.members[1:] if NAME.fullmatch(answer.members[0]) else answer.members
        values = [read_value(member) for member in members]
        if all(_same(values[-1], value, algebra) for value in values[:-1]):
            return gold, values[-1]
    elif not isinstance(answer, Relation) and (named := assignment(gold)):
        return read_value(named[1]), answer
    return gold, answer


def _same_relation(gold: Value, answer: Value, algebra: Algebra) -> bool:
    ours, theirs = interval(gold), interval(answer)
    if (
        ours is not None
        and theirs is not None
        and (isinstance(gold, Relation) or isinstance(answer, Relation))
    ):
        same_name = ours[0] is None or theirs[0] is None or ours[0] == theirs[0]
        return same_name and _same_items(ours[1], theirs[1], algebra)
    if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
        return False
    named_gold, named_answer = assignment(gold), assignment(answer)
    if named_gold and named_answer and named_gold[0] == named_answer[0]:
        return _same(read_value(named_gold[1]), read_value(named_answer[1]), algebra)
    if named_gold and named_answer and all(read_number(n[1]) for n in (named_gold, named_answer)):
        return False
    if sorted(direction(gold)) != sorted(direction(answer)):
        return False
    ours_chain, theirs_chain = chain(gold), chain(answer)
    if _prose(theirs_chain) and not _prose(ours_chain):
        return False
    return algebra(ours_chain, theirs_chain)


def _same_ratio(gold: Ratio, answer: Ratio, algebra: Algebra) -> bool:
    ours = [v.number.value for v in gold.parts if isinstance(v, Quantity)]
    theirs = [v.number.value for v in answer.parts if isinstance(v, Quantity)]
    if len(ours) == len(gold.parts) == len(theirs) == len(answer.parts) and all([*ours, *theirs]):
        return all(a * theirs[0] == b * ours[0] for a, b in zip(ours, theirs, strict=True))
    return _same_list(gold.parts, answer.parts, algebra)


def _same_based(gold: Value, answer: Value) -> bool:
    """Digits in a base: the base must be the same, or left out of one of the two."""
    return _digits(gold) is not None and _digits(gold) == _digits(answer) and (
        not (isinstance(gold, Based) and isinstance(answer, Based)) or gold.base == answer.base
    )  # fmt: skip


def _digits(value: Value) -> str | None:
    if isinstance(value, Based):
        return value.digits
    whole = isinstance(value, Quantity) and value.number.value.denominator == 1
    return str(value.number.value) if whole and isinstance(value, Quantity) else None
