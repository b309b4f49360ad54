"""What a problem's columns say about how its programs are checked."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lydite.verify.code.values import SpellingError, Tree, spell

MAX_TEST_CODE = 2_000_000
_ALIASES = {"inputs": "input", "outputs": "output"}
_METHOD = re.compile(r"^Solution(?:\(\))?\.")


class CheckError(ValueError):
    """A problem whose programs cannot be checked; one line that names the column."""


@dataclass(frozen=True, slots=True)
class OutputTest:
    """A program is given ``input`` and should print ``output``."""

    input: str
    output: str
    hidden: bool


@dataclass(frozen=True, slots=True)
class CallTest:
    """The entry point is called and should return ``expected``; see ``values`` for the spelling.
    ``room``: the kibibytes that a reply with it may take.
    """

    args: Sequence[Tree]
    kwargs: Mapping[str, Tree]
    expected: Tree
    hidden: bool
    room: int = 0


@dataclass(frozen=True, slots=True)
class Checks:
    """One of ``outputs``, ``calls`` and ``test_code`` is not empty. ``prefix`` is what the
    problem's program begins with.
    """

    outputs: Sequence[OutputTest] = ()
    calls: Sequence[CallTest] = ()
    test_code: str = ""
    entry_point: str | None = None
    prefix: str = ""

    def only_hidden(self) -> Checks:
        """The same without the tests that are shown to the model."""
        return replace(
            self,
            outputs=[test for test in self.outputs if test.hidden],
            calls=[test for test in self.calls if test.hidden],
        )


def read_checks(fields: Mapping[str, object], shown: int | None = None) -> Checks:
    """Reads the columns ``tests``; or ``entry_point`` with ``cases``; or ``entry_point`` with
    ``test_code``; and ``starter`` or ``prompt``. Lists may come as JSON text; a column that is null
    is not there.

    Args:
        fields: the problem's columns.
        shown: how many tests at the front are shown to the model; the rest are hidden unless a
            test's own ``hidden`` says otherwise. ``None``: all are shown unless they say otherwise.

    Raises:
        CheckError: none or several of the three, no tests at all, tests that a program passes by
            doing nothing, or a column of another form.
    """
    given = [key for key in ("tests", "cases", "test_code") if fields.get(key) not in (None, "")]
    if not given:
        raise CheckError(
            "no tests; give the column tests, or entry_point with cases or with test_code"
        )
    if len(given) > 1:
        raise CheckError(f"{' and '.join(given)} are given; give one of them")
    prefix = next((v for k in ("starter", "prompt") if isinstance(v := fields.get(k), str)), "")
    if given == ["tests"]:
        outputs = [
            _output_test(item, f"tests[{index}]", _hidden(item, index, shown, "tests"))
            for index, item in enumerate(_list(fields["tests"], "tests"))
        ]
        if not any(test.output.strip() for test in outputs):
            raise CheckError("tests: every output is blank, so a program that does nothing passes")
        return Checks(outputs=outputs, prefix=prefix)
    entry_point = fields.get("entry_point")
    entry_point = _METHOD.sub("", entry_point) if isinstance(entry_point, str) else entry_point
    if not isinstance(entry_point, str) or not entry_point.isidentifier():
        raise CheckError(f"entry_point: expected the name of a function, got {entry_point!r:.60}")
    if given == ["cases"]:
        calls = [
            _call_test(item, f"cases[{index}]", _hidden(item, index, shown, "cases"))
            for index, item in enumerate(_list(fields["cases"], "cases"))
        ]
        if all(test.expected is None for test in calls):
            raise CheckError("cases: all expect null, so a function that does nothing passes")
        return Checks(calls=calls, entry_point=entry_point, prefix=prefix)
    return Checks(test_code=_test_code(fields), entry_point=entry_point, prefix=prefix)


def _json(value: object, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CheckError(f"{where}: text that is not JSON: {error}") from None


def _list(value: object, where: str) -> list[Any]:
    """A list; or columns of equal length, which is how some datasets hold a list of records."""
    value = _json(value, where)
    if isinstance(value, Mapping) and value and all(isinstance(v, list) for v in value.values()):
        lengths = {key: len(column) for key, column in value.items()}
        if len(set(lengths.values())) > 1:
            raise CheckError(f"{where}: columns of different length: {lengths}")
        value = [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    if not isinstance(value, list | tuple):
        raise CheckError(f"{where}: expected a list, got {type(value).__name__}")
    if not value:
        raise CheckError(f"{where}: the list is empty; without tests nothing is checked")
    return [_json(item, f"{where}[{index}]") for index, item in enumerate(value)]


def _hidden(item: Any, index: int, shown: int | None, where: str) -> bool:
    own = item.get("hidden") if isinstance(item, Mapping) else None
    if not isinstance(own, bool | None):
        raise CheckError(f"{where}[{index}].hidden: expected true or false, got {own!r:.40}")
    return own if own is not None else shown is not None and index >= shown


def _output_test(item: Any, where: str, hidden: bool) -> OutputTest:
    if not isinstance(item, Mapping):
        raise CheckError(f"{where}: expected input and output, got {type(item).__name__}")
    item = {_ALIASES.get(key, key): value for key, value in item.items()}
    for key in ("input", "output"):
        if not isinstance(item.get(key), str):
            kind = type(item[key]).__name__ if key in item else "nothing"
            raise CheckError(f"{where}.{key}: expected text, got {kind}")
    # A file that came by way of Windows; programs here read lines that end as lines do here.
    return OutputTest(item["input"].replace("\r\n", "\n"), item["output"], hidden)


def _call_test(item: Any, where: str, hidden: bool) -> CallTest:
    if not isinstance(item, Mapping):
        raise CheckError(f"{where}: expected args and expected, got {type(item).__name__}")
    if "expected" not in item:
        raise CheckError(f"{where}.expected: not given")
    args = _json(item.get("args"), f"{where}.args")
    kwargs = _json(item.get("kwargs"), f"{where}.kwargs") or {}
    if args is None and kwargs:
        args = []
    if not isinstance(args, list | tuple):
        raise CheckError(f"{where}.args: expected a list, got {type(args).__name__}")
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise CheckError(f"{where}.kwargs: expected an object, got {type(kwargs).__name__}")
    try:
        expected = spell(item["expected"])
        return CallTest(
            [spell(value) for value in args],
            {key: spell(value) for key, value in kwargs.items()},
            expected,
            hidden,
            (len(json.dumps(expected)) * 2 >> 10) + 64,
        )
    except SpellingError as error:
        raise CheckError(f"{where}: {error}") from None


def _test_code(fields: Mapping[str, object]) -> str:
    code = fields["test_code"]
    if isinstance(code, list | tuple) and all(isinstance(line, str) for line in code):
        code = "\n".join(code)
    if not isinstance(code, str):
        raise CheckError(f"test_code: expected text, got {type(code).__name__}")
    if len(code) > MAX_TEST_CODE:
        raise CheckError(f"test_code: {len(code)} characters, more than {MAX_TEST_CODE}")
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CheckError(f"test_code: not Python: {' '.join(str(error).split())}") from None
    if not any(_asserts(node) for node in ast.walk(tree)):
        raise CheckError("test_code: it asserts nothing, so every program passes")
    return code


def _asserts(node: ast.AST) -> bool:
    """Whether it can fail: assert, raise, or a call such as ``self.assertEqual(…)``."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Assert | ast.Raise)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name.startswith("assert")
