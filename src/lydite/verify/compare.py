"""Two typed values compared kind by kind: numbers as exact fractions, formulas by
:mod:`lydite.verify.identity`, everything else by its parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import mpmath

from lydite.verify import notation
from lydite.verify.arithmetic import Approximation, Undefined, approximation
from lydite.verify.grammar import Apply, Node, Num, parse
from lydite.verify.identity import constant, proportional, same, substitute, symbols
from lydite.verify.number import ROUNDED_DIGITS, read_number, same_number
from lydite.verify.parts import (
    alone,
    apart,
    difference,
    is_clock,
    is_comma_number,
    is_opaque,
    named_items,
    node_of,
    powers,
    relation_text,
    same_based,
    same_choices,
    same_words,
    scaled,
    without_names,
    written,
)
from lydite.verify.relation import (
    FLIP,
    Interval,
    Region,
    assignment,
    is_infinite,
    labelled,
    region,
    totalled,
)
from lydite.verify.tokens import TooLarge, Unreadable
from lydite.verify.unevaluated import left_to_do
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
class Comparison:
    """How values are compared. ``algebra(gold, answer)`` decides about formulas of the reference
    that the grammar does not know. ``tolerance`` is the relative difference that a number which is
    no integer may have; ``rounded`` also takes what rounds to the reference's decimals.
    ``unevaluated`` also takes a sum, product or division for a plain number.
    """

    algebra: Algebra
    tolerance: float = 0.0
    rounded: bool = False
    unevaluated: bool = False

    def same(self, gold: Value, answer: Value) -> bool:
        """Whether the answer equals the reference."""
        gold, answer = self._assigned(gold, answer)
        if isinstance(gold, Relation) or isinstance(answer, Relation) or _lines(gold, answer):
            return self._relation(gold, answer)
        gold, answer = alone(gold), alone(answer)
        if isinstance(gold, Items) or isinstance(answer, Items):
            return self._several(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return same_words(gold, answer)
        if isinstance(gold, Union) and isinstance(answer, Union):
            return self._bag(gold.parts, answer.parts)
        if isinstance(gold, Matrix) or isinstance(answer, Matrix):
            return self._matrix(gold, answer)
        if isinstance(gold, Ratio) and isinstance(answer, Ratio):
            return self._ratio(gold, answer)
        if isinstance(gold, Ratio):
            return _quotient(gold, answer)
        if isinstance(gold, Based) or isinstance(answer, Based):
            return same_based(gold, answer)
        if isinstance(gold, Quantity | Expression) and isinstance(answer, Quantity | Expression):
            return self._measured(gold, answer)
        return False

    def _assigned(self, gold: Value, answer: Value) -> tuple[Value, Value]:
        """Opens equations where only one side is one: the value of a chain whose members agree (4 +
        6 = 10 is 10; 11 = 10 is nothing), and of an assignment. ``p(x) = 0`` has no value, so it
        never answers 0.
        """
        if (
            not isinstance(gold, Relation)
            and isinstance(answer, Relation)
            and set(answer.operators) == {"="}
            and (region(gold) is None or isinstance(gold, Items | Union))
        ):
            if named := assignment(answer):
                unsolved = "(" in named[0] and isinstance(gold, Quantity)
                unsolved = unsolved and not _EVENT.fullmatch(named[0])
                return gold, answer if unsolved else read_value(named[1])
            if (stated := labelled(answer)) is not None:
                return gold, read_value(stated)
            if isinstance(gold, Quantity) and (stated := totalled(answer)) is not None:
                return gold, read_value(stated)
            ends = Relation((answer.members[0], answer.members[-1]), ("=",))
            named_first = NAME.fullmatch(answer.members[0]) or totalled(ends)
            members = answer.members[1:] if named_first else answer.members
            values = [read_value(member) for member in members]
            loose = replace(self, unevaluated=True)
            if all(loose.same(values[-1], value) for value in values[:-1]):
                numbers = [value for value in values if isinstance(value, Quantity)]
                return gold, numbers[-1] if numbers else values[-1]
        elif not isinstance(answer, Relation) and (wanted := assignment(gold)):
            return read_value(wanted[1]), answer
        elif not isinstance(answer, Relation) and (named_value := labelled(gold)) is not None:
            return read_value(named_value), answer
        return gold, answer

    def _relation(self, gold: Value, answer: Value) -> bool:
        ours, theirs = region(gold), region(answer)
        if ours is not None and theirs is not None:
            return self._region(ours, theirs)
        if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
            return False
        named_gold, named_answer = assignment(gold), assignment(answer)
        if named_gold and named_answer and named_gold[0] == named_answer[0]:
            return self.same(read_value(named_gold[1]), read_value(named_answer[1]))
        if named_gold and named_answer and _graphs(named_gold[0], named_answer[0]):
            return self.same(read_value(named_gold[1]), read_value(named_answer[1]))
        if named_gold and named_answer and "(" in named_gold[0] + named_answer[0]:
            return False
        if named_gold and read_number(named_gold[1]) is not None:
            return False  # solved: 2x = 6 still has to be
        return self._equation(gold, answer)

    def _equation(self, gold: Relation, answer: Relation) -> bool:
        """Equal up to a factor: 2x − y + 3 = 0 is y = 2x + 3. A factor below zero turns an
        inequality round.
        """
        if len(gold.operators) != len(answer.operators):
            return False
        if len(gold.operators) > 1:
            flipped = Relation(answer.members[::-1], tuple(FLIP[o] for o in answer.operators[::-1]))
            return any(
                other.operators == gold.operators
                and all(
                    self._formula(Expression(ours), Expression(theirs))
                    for ours, theirs in zip(gold.members, other.members, strict=True)
                )
                for other in (answer, flipped)
            )
        try:
            ours = difference(gold)
        except Unreadable:
            return self.algebra(relation_text(gold), relation_text(answer))
        try:
            theirs = difference(answer)
        except Unreadable:
            return False
        try:
            factor = proportional(ours, theirs)
        except Undefined:
            return False
        if factor is None:
            return self._solves(gold, theirs, answer)
        wanted = gold.operators[0] if _positive(factor) else FLIP[gold.operators[0]]
        return answer.operators[0] == wanted

    def _solves(self, gold: Relation, theirs: Node, answer: Relation) -> bool:
        """Whether the answer, linear in y, has the reference's ``y = f(x)`` as its only solution:
        xy = 1 is y = 1/x.
        """
        named = assignment(gold)
        if named is None or answer.operators != ("=",) or named[0] not in symbols(theirs):
            return False
        name, solution = named[0], parse(named[1])
        at = [substitute(theirs, name, value) for value in (solution, *map(Num, _THREE))]
        nothing = Num(Fraction(0))
        try:
            bend = Apply("+", (at[1], at[3], Apply("*", (Num(Fraction(-2)), at[2]))))
            return same(at[0], nothing) and same(bend, nothing) and not same(at[1], at[2])
        except Undefined:
            return False

    def _region(self, gold: Region, answer: Region) -> bool:
        if gold.name is not None and answer.name is not None and gold.name != answer.name:
            return False
        if bool(gold.split_at) != bool(answer.split_at):
            gold, answer = _without_points(gold), _without_points(answer)
        return self._bag(gold.split_at, answer.split_at) and self._intervals(
            gold.intervals, answer.intervals
        )

    def _intervals(self, gold: Sequence[Interval], answer: Sequence[Interval]) -> bool:
        left = list(answer)
        for wanted in gold:
            found = next((i for i, one in enumerate(left) if self._interval(wanted, one)), None)
            if found is None:
                return False
            del left[found]
        return not left

    def _interval(self, gold: Interval, answer: Interval) -> bool:
        return (
            (gold.low_closed, gold.high_closed) == (answer.low_closed, answer.high_closed)
            and self._end(gold.low, answer.low)
            and self._end(gold.high, answer.high)
        )

    def _end(self, gold: Value, answer: Value) -> bool:
        if is_infinite(gold) or is_infinite(answer):
            return is_infinite(gold) and is_infinite(answer) and _sign(gold) == _sign(answer)
        return self.same(gold, answer)

    def _several(self, gold: Value, answer: Value) -> bool:
        if isinstance(gold, Items) and isinstance(answer, Items):
            return self._items(gold, answer)
        if isinstance(answer, Items) and isinstance(gold, Quantity):
            return is_comma_number(gold, answer)
        if isinstance(gold, Items) and isinstance(answer, Quantity):
            return answer.number.places is not None and is_comma_number(answer, gold)
        if isinstance(gold, Matrix) and isinstance(answer, Items):
            return self._vector(gold, answer)
        if isinstance(gold, Items) and isinstance(answer, Matrix):
            return self._vector(answer, gold)
        if isinstance(gold, Expression) and isinstance(answer, Items):
            return same_choices(gold.text, answer)
        if isinstance(gold, Items) and isinstance(answer, Expression | Words):
            return same_choices(answer.text, gold)
        return False

    def _vector(self, column: Matrix, items: Items) -> bool:
        """A column against a tuple of its entries."""
        return (
            items.brackets == "()"
            and all(len(row) == 1 for row in column.rows)
            and self._list([row[0] for row in column.rows], items.items)
        )

    def _items(self, gold: Items, answer: Items) -> bool:
        named_gold, named_answer = named_items(gold), named_items(answer)
        if named_gold and named_answer:
            return named_gold.keys() == named_answer.keys() and all(
                self.same(named_gold[name], named_answer[name]) for name in named_gold
            )
        gold, answer = without_names(gold, named_gold), without_names(answer, named_answer)
        unordered = ("", "{}")
        gold, answer = _spread(gold), _spread(answer)
        if gold.brackets in unordered and answer.brackets in unordered:
            if "{}" in (gold.brackets, answer.brackets):
                return self._bag(self._distinct(gold.items), self._distinct(answer.items))
            return self._bag(gold.items, answer.items)
        bare = "" in (gold.brackets, answer.brackets) and "()" in (gold.brackets, answer.brackets)
        return (gold.brackets == answer.brackets or bare) and self._list(gold.items, answer.items)

    def _distinct(self, items: Sequence[Value]) -> list[Value]:
        kept: list[Value] = []
        for item in items:
            if not any(self.same(one, item) for one in kept):
                kept.append(item)
        return kept

    def _list(self, gold: Sequence[Value], answer: Sequence[Value]) -> bool:
        return len(gold) == len(answer) and all(map(self.same, gold, answer))

    def _bag(self, gold: Sequence[Value], answer: Sequence[Value]) -> bool:
        """Equal in some order."""
        left = list(answer)
        if len(gold) != len(left):
            return False
        for wanted in gold:
            found = next((i for i, value in enumerate(left) if self.same(wanted, value)), None)
            if found is None:
                return False
            del left[found]
        return True

    def _matrix(self, gold: Value, answer: Value) -> bool:
        if not (isinstance(gold, Matrix) and isinstance(answer, Matrix)):
            return False
        return len(gold.rows) == len(answer.rows) and all(map(self._list, gold.rows, answer.rows))

    def _ratio(self, gold: Ratio, answer: Ratio) -> bool:
        if is_clock(gold.text):
            return gold.text.lstrip("0") == answer.text.lstrip("0")
        ours = [v.number.value for v in gold.parts if isinstance(v, Quantity)]
        theirs = [v.number.value for v in answer.parts if isinstance(v, Quantity)]
        plain = len(ours) == len(gold.parts) == len(theirs) == len(answer.parts)
        if plain and all([*ours, *theirs]):
            return all(a * theirs[0] == b * ours[0] for a, b in zip(ours, theirs, strict=True))
        return self._list(gold.parts, answer.parts)

    def _measured(self, gold: Quantity | Expression, answer: Quantity | Expression) -> bool:
        """The answer may leave the unit out, and may add one that the reference does not state; it
        may not change it, except to another of the same kind.
        """
        gold, answer = apart(gold, answer), apart(answer, gold)
        ours, theirs = powers(gold.unit), powers(answer.unit)
        if theirs == (("degree", 1),) and isinstance(gold, Expression) and r"\pi" in gold.text:
            return ours is not None and gold.unit == answer.unit and self._formula(gold, answer)
        if ours == (("degree", 1),) and isinstance(answer, Expression) and theirs is None:
            turned = Expression(f"({written(gold)})^{{\\circ}}")
            return self._number_or_formula(gold, answer) or self._formula(turned, answer)
        if ours is None or theirs is None or gold.unit == answer.unit:
            return self._number_or_formula(gold, answer)
        assert gold.unit is not None and answer.unit is not None
        return ours == theirs and self._number_or_formula(
            scaled(gold, gold.unit.scale), scaled(answer, answer.unit.scale)
        )

    def _number_or_formula(
        self, gold: Quantity | Expression, answer: Quantity | Expression
    ) -> bool:
        if isinstance(gold, Quantity) and isinstance(answer, Quantity):
            if gold.unit is not None and gold.number.percent != answer.number.percent:
                return False
            return same_number(gold.number, answer.number) or self._near(gold, answer)
        if is_infinite(gold) or is_infinite(answer):
            return is_infinite(gold) and is_infinite(answer) and _sign(gold) == _sign(answer)
        if not self.unevaluated and left_open(gold, answer):
            return False
        return self._formula(gold, answer) or self._rounding(gold, answer)

    def _near(self, gold: Quantity, answer: Quantity) -> bool:
        """Within the tolerance, or equal as written to the reference's decimals."""
        exact, given = gold.number.value, answer.number.value
        limit = Fraction(0)
        if exact.denominator != 1:
            limit = Fraction(self.tolerance) * abs(exact)
        if self.rounded and gold.number.places is not None:
            limit = max(limit, Fraction(1, 2 * 10**gold.number.places))
        return limit > 0 and abs(exact - given) <= limit

    def _formula(self, gold: Quantity | Expression, answer: Quantity | Expression) -> bool:
        spelled = getattr(gold, "text", None), getattr(answer, "text", "")
        if spelled[0] is not None and notation.squeeze(spelled[0]) == notation.squeeze(spelled[1]):
            return True
        try:
            ours = node_of(gold)
        except Unreadable:
            texts = written(gold), written(answer)
            return not any(map(is_opaque, texts)) and self.algebra(*texts)
        try:
            return same(ours, node_of(answer))
        except (Unreadable, Undefined):
            return False

    def _rounding(self, gold: Quantity | Expression, answer: Quantity | Expression) -> bool:
        """Whether a decimal of at least ``ROUNDED_DIGITS`` digits, or one within the tolerance, is
        the value of the other's formula.
        """
        quantity, formula = (gold, answer) if isinstance(gold, Quantity) else (answer, gold)
        if not (isinstance(quantity, Quantity) and isinstance(formula, Expression)):
            return False
        number = quantity.number
        try:
            node = parse(formula.text)
            if symbols(node):
                return False
            value, digits = constant(node)
        except (Unreadable, Undefined):
            return False
        if isinstance(value, Approximation) and isinstance(value.value, mpmath.mpc):
            return False
        with mpmath.workdps(max(digits, 60)):
            known, written = approximation(value).value, approximation(number.value).value
            limit = mpmath.mpf(self.tolerance) * abs(known)
            if number.places is not None and (
                number.significant >= ROUNDED_DIGITS or (self.rounded and quantity is gold)
            ):
                limit = max(limit, mpmath.mpf(1) / (2 * mpmath.mpf(10) ** number.places))
            return bool(limit and abs(known - written) <= limit)


# P(A) = 1/2 is a value; f(x) = 0 may be what was to be solved.
_EVENT = re.compile(r"[A-Z]\(\s*\w*[A-Z].*\)")
_GRAPH = re.compile(r"y|[fgh]\(x\)")


def _graphs(first: str, second: str) -> bool:
    """Whether both name what is drawn over x: ``y`` and ``f(x)``."""
    return "y" in (first, second) and all(map(_GRAPH.fullmatch, (first, second)))


def _spread(items: Items) -> Items:
    """A set or list with the two values of a ``±`` in it as items of its own."""
    if items.brackets not in ("", "{}"):
        return items
    pairs = [
        item.items if isinstance(item, Items) and not item.brackets else (item,)
        for item in items.items
    ]
    return replace(items, items=tuple(one for pair in pairs for one in pair))


def _quotient(ratio: Ratio, answer: Value) -> bool:
    """The ratio 2:5 said as the fraction 2/5. The other way round 2:5 may be odds, and the
    probability 2/7.
    """
    parts = [part.number.value for part in ratio.parts if isinstance(part, Quantity)]
    if not isinstance(answer, Quantity) or answer.unit is not None or answer.number.percent:
        return False
    if len(ratio.parts) != 2 or len(parts) != 2 or not parts[1] or is_clock(ratio.text):
        return False
    return answer.number.value == parts[0] / parts[1]


def left_open(gold: Value, answer: Value) -> str | None:
    """The sum, product or division in which an answer leaves what the reference gives as a plain
    number.
    """
    if not isinstance(gold, Quantity) or gold.number.power or not isinstance(answer, Expression):
        return None
    try:
        whole = gold.number.value.denominator == 1
        return left_to_do(parse(answer.text), answer.text if whole else "")
    except (Unreadable, TooLarge):
        return None


def _lines(gold: Value, answer: Value) -> bool:
    """Whether both describe a part of the line and at least one is no plain pair of brackets."""
    plain = (Items, Quantity, Matrix, Ratio, Based)
    if isinstance(gold, plain) and isinstance(answer, plain):
        both = isinstance(gold, Items) and isinstance(answer, Items)
        if not (both and "" in (gold.brackets, answer.brackets)):  # type: ignore[union-attr]
            return False
    return region(gold) is not None and region(answer) is not None


_THREE = (Fraction(0), Fraction(1), Fraction(2))


def _positive(value: Fraction | Approximation) -> bool:
    number = value if isinstance(value, Fraction) else value.value
    return bool(not isinstance(number, mpmath.mpc) and number > 0)


def _without_points(place: Region) -> Region:
    """ℝ without some points as a union of intervals, if the points are plain numbers."""
    points = [point for point in place.split_at if isinstance(point, Quantity)]
    if not points or len(points) != len(place.split_at):
        return place
    points.sort(key=lambda point: point.number.value)
    ends: list[Value] = [Expression(r"-\infty"), *points, Expression(r"\infty")]
    return Region(
        place.name,
        tuple(Interval(a, b, False, False) for a, b in pairwise(ends)),
    )


def _sign(value: Value) -> bool:
    return isinstance(value, Expression) and "-" in value.text


__all__ = ["Algebra", "Comparison", "TooLarge", "left_open"]
