"""LaTeX and plain formulas as small trees: the only way that text from a model becomes mathematics.

A grammar of arithmetic, roots, powers, logarithms and the elementary functions, with caps on
length, depth, digits and number of nodes. It evaluates nothing (:mod:`lydite.verify.arithmetic`
does, within its own caps), and what it does not know (sums, limits, integrals, words) it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from lydite.verify.counting import counted
from lydite.verify.tokens import FUNCTIONS, GREEK, Token, TooLarge, Unreadable, tokens

MAX_CHARS = 600
MAX_DEPTH = 24
MAX_NODES = 500
MAX_HEIGHT = 100


@dataclass(frozen=True, slots=True)
class Num:
    """A number. ``places`` is how many decimals it was written with, ``None`` for an integer."""

    value: Fraction
    places: int | None = None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, with its subscript and primes: ``x_1``, ``y'``."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation: ``+ * / ^ neg ! deg abs floor ceil binom sqrt log pi e i`` or a function's
    name.
    """

    op: str
    args: tuple[Node, ...] = ()
    height: int = 0


Node = Num | Symbol | Apply

_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}
_OPAQUE = frozenset("fghFGH")


@lru_cache(maxsize=2048)
def parse(text: str) -> Node:
    """The formula that normalised text spells.

    Raises:
        Unreadable: it is not one.
        TooLarge: it passes a cap.
    """
    if len(text) > MAX_CHARS:
        raise TooLarge(f"more than {MAX_CHARS} characters")
    text = counted(text)
    try:
        return _Parser(text).whole()
    except RecursionError:
        raise TooLarge("nested too deeply") from None


def _minus_one(node: Node) -> bool:
    return isinstance(node, Apply) and node.op == "neg" and node.args == (Num(Fraction(1)),)


def _named(node: Node) -> bool:
    """Whether a variable occurs."""
    return isinstance(node, Symbol) or (isinstance(node, Apply) and any(map(_named, node.args)))


class _Parser:
    """Recursive descent over the tokens; every method leaves the place after what it read."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0
        self._depth = 0
        self._nodes = 0
        self._bars = 0

    def whole(self) -> Node:
        node = self._sum()
        if self._at != len(self._tokens):
            raise Unreadable(self._tokens[self._at].text)
        return node

    def _peek(self, ahead: int = 0) -> Token | None:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else None

    def _is(self, *texts: str) -> bool:
        token = self._peek()
        return token is not None and token.kind == "op" and token.text in texts

    def _command(self, *names: str) -> bool:
        token = self._peek()
        return token is not None and token.kind == "command" and token.text in names

    def _take(self) -> Token:
        token = self._peek()
        if token is None:
            raise Unreadable("it ends too early")
        self._at += 1
        return token

    def _need(self, text: str) -> None:
        if not self._is(text):
            raise Unreadable(f"no {text}")
        self._at += 1

    def _make(self, op: str, *args: Node) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise TooLarge(f"more than {MAX_NODES} operations")
        height = 1 + max((arg.height for arg in args if isinstance(arg, Apply)), default=0)
        if height > MAX_HEIGHT:
            raise TooLarge(f"operations nested more than {MAX_HEIGHT} deep")
        return Apply(op, args, height)

    def _product(self, left: Node, right: Node) -> Node:
        """Flat, so that a long product is no deep tree."""
        before = left.args if isinstance(left, Apply) and left.op == "*" else (left,)
        return self._make("*", *before, right)

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge(f"brackets nested more than {MAX_DEPTH} deep")
        terms = [self._term()]
        while self._is("+", "-"):
            negative = self._take().text == "-"
            term = self._term()
            terms.append(self._make("neg", term) if negative else term)
        self._depth -= 1
        return terms[0] if len(terms) == 1 else self._make("+", *terms)

    def _term(self) -> Node:
        """Factors multiplied or divided, from the left; a sign belongs to the whole term."""
        if self._is("+", "-"):
            sign = self._take().text
            node = self._term()
            return self._make("neg", node) if sign == "-" else node
        node = self._factor()
        while True:
            if self._is("*", "/") or self._command("cdot", "times", "div", "ast"):
                division = self._take().text in ("/", "div")
                right = self._signed()
                node = self._make("/", node, right) if division else self._product(node, right)
            elif self._starts_factor():
                node = self._adjacent(node)
            else:
                return node

    def _signed(self) -> Node:
        if self._is("+", "-"):
            sign = self._take().text
            node = self._signed()
            return self._make("neg", node) if sign == "-" else node
        return self._factor()

    def _starts_factor(self) -> bool:
        token = self._peek()
        if token is None:
            return False
        if token.kind == "op":
            return token.text in "([{" or (token.text == "|" and not self._bars)
        if token.kind == "command":
            return token.text not in ("cdot", "times", "div", "ast", "}", "rfloor", "rceil", "|")
        return True

    def _adjacent(self, left: Node) -> Node:
        """What stands beside a factor multiplies it; a fraction beside a whole number is a mixed
        number (3 3/4), and a number beside a number is nothing.
        """
        token = self._peek()
        before = self._peek(-1)
        assert token is not None and before is not None
        whole = isinstance(left, Num) and left.places is None and before.kind == "number"
        if token.kind == "number":
            nxt, last = self._peek(1), self._peek(2)
            if whole and nxt and nxt.text == "/" and last and last.kind == "number":
                part = self._make_ratio(self._take().text, (self._take(), self._take())[1].text)
                if part.value < 1:
                    return self._make("+", left, part)
            if before.kind == "number":
                raise Unreadable("two numbers side by side")
        right = self._factor()
        if whole and isinstance(right, Apply) and right.op == "/" and token.text == "frac":
            top, bottom = right.args
            if (
                isinstance(top, Num)
                and isinstance(bottom, Num)
                and 0 < top.value < bottom.value
                and top.places is None
                and bottom.places is None
            ):
                return self._make("+", left, right)
        return self._product(left, right)

    def _make_ratio(self, top: str, bottom: str) -> Num:
        if "." in top + bottom or not int(bottom):
            raise Unreadable("two numbers side by side")
        return Num(Fraction(int(top), int(bottom)))

    def _factor(self) -> Node:
        base = self._atom()
        while True:
            if self._is("!"):
                self._at += 1
                if self._is("!"):
                    raise Unreadable("!!")
                base = self._make("!", base)
            elif self._is("%") or self._command("percent"):
                self._at += 1
                base = self._make("/", base, Num(Fraction(100)))
            elif self._is("^", "**"):
                self._at += 1
                if self._degrees():
                    base = self._make("deg", base)
                    continue
                return self._more(self._make("^", base, self._exponent()))
            else:
                return base

    def _more(self, base: Node) -> Node:
        """A factorial or degree sign after a power."""
        if self._is("!"):
            self._at += 1
            return self._make("!", base)
        if self._is("^", "**"):
            raise Unreadable("two exponents")
        return base

    def _degrees(self) -> bool:
        start = self._at
        braced = self._is("{")
        self._at += braced
        found = self._command("circ")
        self._at += found
        if found and braced:
            self._need("}")
        if not found:
            self._at = start
        return found

    def _exponent(self) -> Node:
        """A group, or one signed factor (powers associate to the right)."""
        if self._is("{"):
            return self._group()
        if self._is("-", "+"):
            sign = self._take().text
            inner = self._exponent()
            return self._make("neg", inner) if sign == "-" else inner
        base = self._atom()
        if self._is("^", "**"):
            self._at += 1
            return self._make("^", base, self._exponent())
        return base

    def _group(self) -> Node:
        """``{…}``, or for a LaTeX argument without braces one atom."""
        if not self._is("{"):
            return self._atom()
        self._at += 1
        node = self._sum()
        self._need("}")
        return node

    def _atom(self) -> Node:
        token = self._take()
        if token.kind == "number":
            _, point, decimals = token.text.partition(".")
            return Num(Fraction(token.text), len(decimals) if point else None)
        if token.kind == "letter":
            return self._letter(token.text)
        if token.kind == "command":
            return self._named(token.text)
        closing = {"(": ")", "[": "]", "{": "}"}.get(token.text)
        if closing is not None:
            bars, self._bars = self._bars, 0
            node = self._sum()
            self._bars = bars
            self._need(closing)
            return node
        if token.text == "|":
            self._bars += 1
            node = self._sum()
            self._need("|")
            self._bars -= 1
            return self._make("abs", node)
        raise Unreadable(token.text)

    def _letter(self, letter: str) -> Node:
        name = letter + self._marks()
        if name in ("e", "i"):
            return Apply(name)
        if letter in _OPAQUE and self._is("("):
            start = self._at
            self._atom()
            inside = "".join(token.text for token in self._tokens[start : self._at])
            return Symbol(f"{name}{inside}")
        return Symbol(name)

    def _marks(self) -> str:
        """A subscript and primes."""
        marks = ""
        while True:
            if self._is("'"):
                self._at += 1
                marks += "'"
            elif self._is("_") and "_" not in marks:
                self._at += 1
                marks += "_" + self._subscript()
            else:
                return marks

    def _subscript(self) -> str:
        if not self._is("{"):
            token = self._take()
            if token.kind not in ("number", "letter"):
                raise Unreadable("subscript")
            return token.text
        self._at += 1
        name = ""
        while not self._is("}"):
            token = self._take()
            if token.kind == "op" and token.text not in "+-*'":
                raise Unreadable("subscript")
            name += token.text
        self._at += 1
        return name

    def _named(self, name: str) -> Node:
        if name in FUNCTIONS:
            return self._function(FUNCTIONS[name])
        if name == "log":
            return self._logarithm()
        if name in ("frac", "dfrac", "tfrac", "binom", "dbinom", "tbinom"):
            top, bottom = self._group(), self._group()
            return self._make("binom" if "binom" in name else "/", top, bottom)
        if name in ("sqrt", "cbrt"):
            return self._root(3 if name == "cbrt" else 2)
        if name == "pi":
            return Apply("pi")
        if name == "infty":
            return Apply("inf")
        if name == "abs":
            return self._make("abs", self._group())
        if name in ("lfloor", "lceil"):
            node = self._sum()
            if not self._command("rfloor" if name == "lfloor" else "rceil"):
                raise Unreadable(name)
            self._at += 1
            return self._make("floor" if name == "lfloor" else "ceil", node)
        if name in GREEK:
            return Symbol(name + self._marks())
        if name == "overline":
            node = self._group()
            return self._make("conj", node) if not _named(node) else Symbol(f"conj {node!r}")
        raise Unreadable(name)

    def _root(self, degree: int) -> Node:
        index: Node = Num(Fraction(degree))
        if self._is("["):
            self._at += 1
            index = self._sum()
            self._need("]")
        return self._make("sqrt", self._group(), index)

    def _logarithm(self) -> Node:
        if not self._is("_"):
            return self._function("log")
        self._at += 1
        token = self._peek()
        if token is not None and token.kind == "number" and len(token.text) > 1:
            following = self._peek(1)
            if following is None or following.text in ("+", "-", ")", "}"):  # \log_28 is log of 8
                self._at += 1
                base, argument = (Num(Fraction(d)) for d in (token.text[0], token.text[1:]))
                return self._make("/", self._make("ln", argument), self._make("ln", base))
        bottom = self._group()
        return self._make("/", self._function("ln"), self._make("ln", bottom))

    def _function(self, name: str) -> Node:
        """``\\sin x``, ``\\sin^2 x``, ``\\sin(x)``, ``\\sin 2x``: without brackets the argument is
        what is multiplied beside it, up to the next function.
        """
        power: Node | None = None
        if self._is("^"):
            self._at += 1
            power = self._exponent()
            if _minus_one(power) and name in _INVERSE:
                name, power = _INVERSE[name], None
        argument = self._atom() if self._is("(", "{", "[") else self._bare_argument()
        node = self._make(name, argument)
        if name == "cis":
            node = self._make("^", Apply("e"), self._make("*", Apply("i"), argument))
        return node if power is None else self._make("^", node, power)

    def _bare_argument(self) -> Node:
        negative = self._is("-")
        self._at += negative
        node = self._factor()
        while self._starts_factor():
            token = self._peek()
            assert token is not None
            if token.kind == "command" and (token.text in FUNCTIONS or token.text == "log"):
                break
            if token.kind == "op" and token.text in "([|":
                break
            node = self._adjacent(node)
        if self._is("/") and (after := self._peek(1)) and after.kind == "number":
            self._at += 1
            node = self._make("/", node, self._factor())
        return self._make("neg", node) if negative else node
