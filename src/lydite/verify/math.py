"""Whether a mathematical answer equals the reference.

Both are typed first (:mod:`lydite.verify.value`) and compared kind by kind
(:mod:`lydite.verify.compare`), numbers as exact fractions, formulas within the caps of
:mod:`lydite.verify.grammar` and :mod:`lydite.verify.arithmetic`. Only a reference that the grammar
does not know reaches computer algebra, through the ``algebra`` argument: Math-Verify in a killable
worker (:mod:`lydite.verify.algebra`), never this process. An answer that restates the problem
instead of solving it (an unevaluated sum, limit, gcd …) is refused unless the reference is written
that way too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lydite.types import Outcome
from lydite.verify import notation
from lydite.verify.answer import AnswerType
from lydite.verify.arithmetic import Undefined, allow_work
from lydite.verify.compare import Algebra, Comparison, left_open
from lydite.verify.grammar import parse
from lydite.verify.identity import same
from lydite.verify.limits import too_large
from lydite.verify.number import read_number
from lydite.verify.relation import region
from lydite.verify.tokens import TooLarge, Unreadable
from lydite.verify.value import (
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
    split,
)


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


def grade(
    gold: str,
    answer: str,
    algebra: Algebra,
    kind: AnswerType = "auto",
    tolerance: float = 0.0,
    unevaluated: bool = False,
) -> Decision:
    """Compares an answer as the model wrote it with the reference as the data has it.

    ``kind`` states what the reference is; by default its writing says so. ``tolerance`` is the
    relative difference allowed to a number that is no integer. ``unevaluated`` accepts a sum,
    product or division where the reference is a plain number. ``algebra(gold, answer)`` decides
    about references that the grammar does not know; it may raise :class:`UnreadableAnswer` (the
    outcome is ``unparseable``) or :class:`UnreadableReference` (``ungradable``).
    """
    gold_text, answer_text = map(_opened, map(notation.normalise, (gold, answer)))
    if not gold_text:
        return Decision(Outcome.UNGRADABLE, "the reference is empty")
    if not answer_text:
        return Decision(Outcome.UNPARSEABLE, "the final answer is empty")
    allow_work()
    if kind in ("text", "choice"):
        return _as_written(gold_text, answer_text, kind)
    if notation.squeeze(gold_text) == notation.squeeze(answer_text):
        return Decision(Outcome.CORRECT)
    if kind == "auto" and (letter := _letter_decision(gold_text, answer_text)) is not None:
        return letter
    answer_text = _concluded(answer_text)
    if unfit := _unfit(gold_text, answer_text):
        return unfit
    comparison = Comparison(
        algebra, tolerance, kind == "decimal", unevaluated or kind == "expression"
    )
    return _compared(gold_text, answer_text, comparison, kind)


def _concluded(answer: str) -> str:
    """The last member of ``\\sum … = 5050`` or ``1 + 2 + … + 100 = 5050``: what it comes to."""
    first, *members = split(answer, ("=",))[:9] or [answer]
    if members and (_UNEVALUATED.search(first) or r"\ldots" in first):
        last = members[-1]
        return answer if _UNEVALUATED.search(last) or r"\ldots" in last else last
    return answer


def _unfit(gold: str, answer: str) -> Decision | None:
    """What is decided without reading: too large, or the problem restated."""
    if (reason := too_large(gold)) and read_number(gold) is None:
        return Decision(Outcome.UNGRADABLE, f"the reference is too large to check: {reason}")
    if (reason := too_large(answer)) and read_number(answer) is None:
        return Decision(Outcome.UNPARSEABLE, f"the answer is too large to check: {reason}")
    if restated := _restated(gold, answer):
        return Decision(Outcome.WRONG, f"the answer is left unevaluated ({restated})")
    return None


def _compared(
    gold_text: str, answer_text: str, comparison: Comparison, kind: AnswerType
) -> Decision:
    gold_text, answer_text = _one_parameter(gold_text, answer_text)
    ours = _retyped(read_value(gold_text), kind)
    if isinstance(ours, Items):
        answer_text = (
            _POINT.sub("", answer_text, count=1) if _POINT.match(answer_text) else answer_text
        )
    theirs = _retyped(read_value(answer_text), kind)
    if not _is(ours, kind):
        return Decision(Outcome.UNGRADABLE, f"the reference is no {kind}")
    if kind not in ("auto", "expression") and not _is(theirs, kind, answer=True):
        return Decision(Outcome.WRONG, f"the answer is no {kind}")
    try:
        equal = comparison.same(ours, theirs) or (
            _GROUPED.fullmatch(gold_text) is not None
            and ",0" not in gold_text
            and isinstance(theirs, Items)
            and comparison.same(_listed(gold_text), theirs)
        )
    except UnreadableAnswer:
        return Decision(Outcome.UNPARSEABLE, "the answer cannot be read as mathematics")
    except UnreadableReference:
        return Decision(Outcome.UNGRADABLE, "the reference cannot be read as mathematics")
    except TooLarge as reason:
        return Decision(Outcome.UNPARSEABLE, f"the answer is too large to check: {reason}")
    if equal:
        return Decision(Outcome.CORRECT)
    if isinstance(theirs, Expression) and not _readable(theirs.text) and _known(ours):
        return Decision(Outcome.UNPARSEABLE, "the answer cannot be read as mathematics")
    if not comparison.unevaluated and (operation := left_open(ours, theirs)):
        return Decision(Outcome.WRONG, f"the answer is an unevaluated {operation}")
    return Decision(Outcome.WRONG)


# 100,200,300 is a number, or a list written without spaces.
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")


def _listed(text: str) -> Items:
    return Items(tuple(read_value(piece) for piece in text.split(",")))


_SYSTEM = re.compile(r"\\begin\{(?:cases|aligned)\}(.*)\\end\{(?:cases|aligned)\}", re.DOTALL)
_POINT = re.compile(r"[A-Z]'?\s*(?==?\s*\(.*\)$)=?")


def _opened(text: str) -> str:
    """A system of assignments as a list: ``x = 4, y = -7``."""
    found = _SYSTEM.fullmatch(text)
    rows = [row.replace("&", "").strip(" ,") for row in found[1].split("\\\\")] if found else []
    rows = [row for row in rows if row]
    listed = rows and all(re.fullmatch(r"[A-Za-z]\w*\s*=[^=<>]+", row) for row in rows)
    return ", ".join(rows) if listed else text


_CONSTANT = re.compile(r"\+\s*C$")
_INTEGER = re.compile(
    r"\s*[,;(]?\s*(?:\\?(?:text|quad)\s*\{?\s*)?(?:where|for|with)?\s*(?:any|all|some)?\s*\}?\s*"
    r"([a-z])\s*\\in\s*(?:\\mathbb\s*\{?\s*)?Z\s*\}?\s*\)?$"
)


def _one_parameter(gold: str, answer: str) -> tuple[str, str]:
    """``kπ, k ∈ ℤ`` without its clause, the answer's letter being the reference's."""
    ours, theirs = _INTEGER.search(gold), _INTEGER.search(answer)
    if _CONSTANT.search(gold) and not re.search(
        r"C|\\", _CONSTANT.sub("", gold)[-1:] + answer[-1:]
    ):
        answer = re.sub(r"\+\s*[ck]$", "+ C", answer)
    if ours is None or (theirs is None and r"\in" in answer):
        return gold, answer
    gold = gold[: ours.start()]
    if theirs is not None:
        letter = rf"(?<![A-Za-z\\]){theirs[1]}(?![A-Za-z])"
        answer = re.sub(letter, ours[1], answer[: theirs.start()])
    return gold, answer


def check_reference(gold: str, algebra: Algebra, kind: AnswerType = "auto") -> Decision:
    """Whether answers can be compared with this reference at all: ``correct``, or ``ungradable``
    and why.

    Comparing it with itself would only compare two equal texts, so every formula in it is read and
    evaluated, and what the grammar does not know goes to ``algebra``.
    """
    text = notation.normalise(gold)
    if not text:
        return Decision(Outcome.UNGRADABLE, "the reference is empty")
    if kind == "choice" and _CHOSEN.fullmatch(notation.open_text(text)) is None:
        return Decision(Outcome.UNGRADABLE, "the reference is no choice: no letter A to J")
    allow_work()
    if kind in ("text", "choice"):
        return Decision(Outcome.CORRECT)
    if read_number(text) is None and (reason := too_large(text)):
        return Decision(Outcome.UNGRADABLE, f"the reference is too large to check: {reason}")
    if clause := _INTEGER.search(text):
        text = text[: clause.start()]
    value = _retyped(read_value(text), kind)
    if not _is(value, kind):
        return Decision(Outcome.UNGRADABLE, f"the reference is no {kind}")
    try:
        alike = all(_equals_itself(part, algebra) for part in _formulas(value))
    except (UnreadableReference, UnreadableAnswer):
        return Decision(Outcome.UNGRADABLE, "the reference cannot be read as mathematics")
    except Undefined:
        return Decision(Outcome.UNGRADABLE, "the reference has no value")
    except TooLarge as reason:
        return Decision(Outcome.UNGRADABLE, f"the reference is too large to check: {reason}")
    return (
        Decision(Outcome.CORRECT)
        if alike
        else Decision(Outcome.UNGRADABLE, "the reference does not equal itself")
    )


def _equals_itself(text: str, algebra: Algebra) -> bool:
    try:
        node = parse(text)
    except Unreadable:
        return algebra(text, text)
    return same(node, node)


def _known(gold: Value) -> bool:
    return not isinstance(gold, Expression) or _readable(gold.text)


def _readable(text: str) -> bool:
    try:
        parse(text)
    except (Unreadable, TooLarge):
        return False
    return True


# Signs of what can only be compared as written.
_WRITTEN = re.compile(
    r"\\(?:ldots|infty|parallel|perp|cong|sim|triangle|rightarrow|Rightarrow|iff|land|neg|forall"
    r"|exists|subset|subseteq|mathbb|overrightarrow|vec)(?![A-Za-z])"
)


def _formulas(value: Value) -> list[str]:
    """The parts of a value that have to be read as formulas."""
    if isinstance(value, Expression):
        arrow = r"\to" in value.text and r"\lim" not in value.text
        plain = arrow or _WRITTEN.search(value.text) or _CHOICE.fullmatch(value.text)
        known = region(value) is not None or r"\emptyset" in value.text
        return [] if plain or known else [value.text]
    if isinstance(value, Relation):
        return [part for member in value.members for part in _formulas(read_value(member))]
    parts: Sequence[Value] = ()
    if isinstance(value, Items):
        parts = value.items
    elif isinstance(value, Union | Ratio):
        parts = value.parts
    elif isinstance(value, Matrix):
        parts = [cell for row in value.rows for cell in row]
    return [formula for part in parts for formula in _formulas(part)]


def _number(value: Value) -> bool:
    return isinstance(value, Quantity)


def _empty(value: Value) -> bool:
    return isinstance(value, Expression) and value.text.strip() == r"\emptyset"


_IS: dict[str, Callable[[Value], bool]] = {
    "integer": lambda value: isinstance(value, Quantity) and value.number.value.denominator == 1,
    "rational": _number,
    "decimal": lambda value: isinstance(value, Quantity | Expression),
    "quantity": _number,
    "equation": lambda value: isinstance(value, Relation),
    "tuple": lambda value: isinstance(value, Items),
    "set": lambda value: isinstance(value, Items) or _empty(value),
    "interval": lambda value: region(value) is not None,
    "matrix": lambda value: isinstance(value, Matrix),
}


def _is(value: Value, kind: AnswerType, answer: bool = False) -> bool:
    """Whether a value is of the stated kind. An answer may name it (x = 3) or spell a number as a
    formula.
    """
    if kind not in _IS or _IS[kind](value):
        return True
    computed = ("integer", "rational", "quantity", "decimal", "matrix", "tuple")
    return answer and kind in computed and isinstance(value, Expression | Relation)


def _retyped(value: Value, kind: AnswerType) -> Value:
    """A value read in the light of the stated kind: a set is without order however it is written, a
    tuple is ordered.
    """
    if kind == "set":
        items = value.items if isinstance(value, Items) else (value,)
        return value if isinstance(value, Expression) else Items(items, "{}")
    if kind == "tuple" and isinstance(value, Items):
        return Items(value.items, "()")
    return value


_CHOICE = re.compile(r"(?:(?:Option|Choice|Answer)\s*:?\s*)?\(?([A-J])\)?")
_CHOSEN = re.compile(
    r"(?:(?:(?:the\s+)?(?:(?:correct|final)\s+)?(?:option|choice|answer)(?:\s+is)?|选项|选)\s*:?\s*)?"
    r"(?:\(\s*([A-J])\s*\)|([A-J])(?:[.:)]|\s*\Z))(.*)",
    re.DOTALL | re.IGNORECASE,
)


def _as_written(gold: str, answer: str, kind: AnswerType) -> Decision:
    """Stated text or choice: nothing is computed."""
    if kind == "choice":
        letter = _letter_decision(gold, answer, stated=True)
        return letter or Decision(Outcome.WRONG, "the answer is no choice")
    alike = Comparison(refuse_algebra).same(
        Words(notation.plain_words(gold)), Words(notation.plain_words(answer))
    )
    return Decision(Outcome.CORRECT if alike else Outcome.WRONG)


def _letter_decision(gold: str, answer: str, stated: bool = False) -> Decision | None:
    """Multiple choice: a reference of one letter against ``(B)``, ``B. twelve`` or ``B``."""
    opened = notation.open_text(gold)
    wanted = (_CHOSEN if stated else _CHOICE).fullmatch(opened) or re.fullmatch(
        r"\(([A-J])\)\s*\S.*", opened
    )
    chosen = _CHOSEN.fullmatch(re.sub(r"\\ ?|[*$]", " ", notation.open_text(answer)).strip())
    if wanted is None or chosen is None:
        return None
    rest = chosen[3]
    if re.search(r"\(?\b[A-J]\b\)?[,.:)]|\([A-J]\)|\b(?:or|and|not)\b\s*\(?[A-J]\b", rest):
        return Decision(Outcome.WRONG, "the answer names more than one choice")
    letter, bracketed = chosen[1] or chosen[2], chosen[1] is not None
    right = next(group for group in wanted.groups() if group)
    small = letter.islower() and not bracketed and not stated and len(answer) == 1
    if small and not (right in "ABCDE" and right.lower() == letter):
        return None
    return Decision(Outcome.CORRECT if right.upper() == letter.upper() else Outcome.WRONG)


_UNEVALUATED = re.compile(
    r"\\(sum|prod|int|iint|oint|lim|limsup|liminf|gcd|lcm|max|min|sup|inf|det|bmod|pmod|mod|Pr|deg|dim)(?![A-Za-z])"
    r"|\\(?:operatorname|text|mathrm)\*?\{\s*(gcd|lcm|sum|max|min|mod|lim|det|hcf|gcf)\s*\}"
    r"|\b(gcd|lcm|sum|max|min|integral|limit|mod|hcf|gcf)\s*\(|\\begin\{(vmatrix|cases)\}"
    r"|(?<![A-Za-z])(d)\s*/\s*d[a-z]|\\frac\s*\{(d)\}\s*\{d[a-z]\}|\d\s*(mod)\s*\d"
)


def _restated(gold: str, answer: str) -> str | None:
    """The operation that an answer leaves to be done and the reference does not mention."""
    for match in _UNEVALUATED.finditer(answer):
        name = next(group for group in match.groups() if group)
        if name not in gold:
            return name
    return None


__all__ = [
    "Algebra",
    "Decision",
    "NeedsAlgebra",
    "UnreadableAnswer",
    "UnreadableReference",
    "check_reference",
    "grade",
    "refuse_algebra",
]
