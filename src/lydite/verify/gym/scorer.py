"""Scores answers with reasoning-gym, inside a sandbox. Sent there as source, never imported here.

Run once in the sandbox's first process, before any answer is there: it loads the library and takes
away what the library does with an answer that it should not. Nine of its datasets evaluate the
answer as Python, by ``eval`` or by sympy's parser; code in an answer could write its own mark, in
whatever sandbox. So ``eval`` reads literals and arithmetic on numbers here, and what sympy's parser
has made of an answer is looked through before it is evaluated.

The answers to a problem are then scored in a process of their own, forked from here: :func:`main`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib.abc
import importlib.machinery
import json
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_BITS = 20_000
JUNK = "zzz"
GUARDED = [False]
FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc",
    "sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "cbrt",
    "Abs",
})  # fmt: skip
ATOMS = frozenset({"Symbol", "Integer", "Float", "Rational"})
CONSTANTS = frozenset({"pi", "E", "I"})
ATOM_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,20}|[0-9.eE+-]{1,400}")
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Pow: operator.pow,
    ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Invert: operator.invert,
}  # fmt: skip
GROWING = (ast.LShift, ast.Pow)


class StandIn(types.ModuleType):
    """A module that has whatever is asked of it, and does nothing: scoring draws no pictures."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of the plotting library, which takes seconds to load and
    wants a folder to write in.
    """

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ("matplotlib", "mpl_toolkits"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def load(paths: Sequence[str]) -> None:
    """Imports the library from ``paths`` and puts the guards in place."""
    sys.path[len(sys.path) :] = paths
    sys.meta_path.insert(0, StandIns())
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    import reasoning_gym  # noqa: F401
    from sympy.parsing import sympy_parser

    os.environ.clear()
    evaluated = sympy_parser.eval_expr

    def eval_expr(code: Any, local_dict: Mapping[str, Any], global_dict: Mapping[str, Any]) -> Any:
        if GUARDED[0]:
            check_expression(code, local_dict)
        return evaluated(code, local_dict, global_dict)

    sympy_parser.eval_expr = eval_expr
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "reasoning_gym":
            vars(module).update(eval=evaluate, exec=execute)


def evaluate(text: Any, *_: Any) -> Any:
    """In the place of ``eval``: a literal, or arithmetic on numbers."""
    tree = ast.parse(text.strip(), mode="eval").body
    try:
        return ast.literal_eval(tree)
    except ValueError:
        return number(tree)


def number(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return tree.value
    if isinstance(tree, ast.UnaryOp) and type(tree.op) in OPERATORS:
        return OPERATORS[type(tree.op)](number(tree.operand))
    if isinstance(tree, ast.BinOp) and type(tree.op) in OPERATORS:
        left, right = number(tree.left), number(tree.right)
        if isinstance(tree.op, GROWING) and abs(right) * abs(left).bit_length() > MAX_BITS:
            raise ValueError("too large")
        return OPERATORS[type(tree.op)](left, right)
    raise ValueError("neither a literal nor arithmetic")


def execute(*given: Any) -> None:
    """In the place of ``exec``: for problems, not for answers."""
    if GUARDED[0]:
        raise ValueError("an answer is not executed")
    builtins.exec(*given)


def check_expression(code: Any, known: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` unless code is a formula: numbers, symbols, operators and elementary
    functions. An integral, sum or derivative is no answer: it restates the problem.
    """
    tree = ast.parse(code.strip(), mode="eval") if isinstance(code, str) else None
    if tree is None:
        raise ValueError("not a formula")
    atoms: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if node.keywords or called not in FUNCTIONS | ATOMS:
                raise ValueError(f"not a formula: {called or 'a call'}")
            if called in ATOMS:
                atoms.update(map(id, node.args))
        elif isinstance(node, ast.Constant):
            value = node.value
            named = isinstance(value, str) and id(node) in atoms and ATOM_TEXT.fullmatch(value)
            if not named and type(value) not in (int, float):
                raise ValueError(f"not a formula: {value!r:.40}")
        elif isinstance(node, ast.Name):
            if node.id not in FUNCTIONS | ATOMS | CONSTANTS and node.id not in known:
                raise ValueError(f"not a formula: {node.id}")
        elif not isinstance(
            node,
            ast.Expression | ast.BinOp | ast.UnaryOp | ast.Load | ast.operator | ast.unaryop,
        ):
            raise ValueError(f"not a formula: {type(node).__name__}")


class Unfit(Exception):
    """The problem cannot be scored; why."""


def scorer(problem: Mapping[str, Any]) -> Callable[[str], float]:
    """The function that scores answers to a problem.

    A scorer may want the tuples that JSON has made lists of, so both are tried: the one that takes
    the problem's own answer is the one.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    name = problem["dataset"]
    if name not in DATASETS:
        raise Unfit(f"reasoning-gym has no dataset {name!r:.60}")
    try:
        data = reasoning_gym.create_dataset(name, **problem["config"])
    except Exception as error:
        raise Unfit(f"{name} refuses its settings: {brief(error)}") from error
    entry = problem["entry"]
    entries = (entry, {**entry, "metadata": tuples(entry["metadata"])})
    if entry["answer"] is None:
        return marker(data, entry)
    why = "it does not give full marks"
    for each in entries:
        try:
            if marker(data, each)(entry["answer"]) >= 1:
                return marker(data, each)
        except Exception as error:
            why = brief(error)
    raise Unfit(f"{name}'s scorer refuses the reference itself: {why}")


def marker(data: Any, entry: Mapping[str, Any]) -> Callable[[str], float]:
    """Scores by an entry, each time from a fresh copy: scorers may write into it."""
    return lambda answer: data.score_answer(answer, copy.deepcopy(entry))


def tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: tuples(inner) for key, inner in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def brief(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def guarded(score: Callable[[str], float], answer: str) -> dict[str, Any]:
    """The marks of an answer, or what the scorer raised over it."""
    GUARDED[0] = True
    try:
        return {"score": float(score(answer))}
    except Exception as error:
        return {"raised": brief(error)}
    finally:
        GUARDED[0] = False


def examine(problem: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of the answers to a problem, if it can be scored.

    ``junk`` is the most that the scorer gives what is no answer, ``loose`` what it gives the
    reference with more said than that.
    """
    try:
        score = scorer(problem)
    except Unfit as error:
        return {"unfit": str(error)}
    reference = problem["entry"]["answer"]
    junk, loose = [JUNK], []
    if reference is not None:
        junk += [reference[:1]] if beginning(reference) else []
        loose = [f"{reference} or {reference}1", f"not {reference}", f"{reference}{JUNK}"]
    most = [
        max((guarded(score, text).get("score", 0.0) for text in texts), default=0.0)
        for texts in (junk, loose)
    ]
    marks = [guarded(score, answer) for answer in problem["submitted"]]
    return {"junk": most[0], "loose": most[1], "marks": marks}


def beginning(reference: str) -> bool:
    """Whether its first character is another answer than the whole."""
    try:
        return float(reference[:1]) != float(reference)
    except ValueError:
        return len(reference.strip()) > 1


def main() -> None:
    """Reads problems with answers to each from standard input, replies with the nonce that came
    with them.
    """
    with open(0, "rb", closefd=False) as source:
        asked = json.loads(source.read())
    private, nothing = os.dup(1), os.open("/dev/null", os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    found = [examine(each) for each in asked["problems"]]
    left = memoryview(json.dumps({"nonce": asked["nonce"], "found": found}).encode())
    while left:
        left = left[os.write(private, left) :]
    os._exit(0)
