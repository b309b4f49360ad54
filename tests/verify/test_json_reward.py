"""JSON read strictly, compared as data and fitted to schemas."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lydite.config import UserError, validate
from lydite.types import Problem
from lydite.verify import VerifierConfig, build, verify_golds
from lydite.verify.json_data import Leniency, NotJson, read_json, same_data
from lydite.verify.schema import misfit, schema_fault


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{'a': 1}", "{a: 1}", "[1,]", "[1] [2]", "NaN", "[Infinity]", "-Infinity",
        '{"a": 1, "a": 2}', "01", "1e999", "1e-400",
        "[" * 200 + "]" * 200, "9" * 5000, "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(NotJson):
        read_json(text)


@pytest.mark.parametrize(
    ("gold", "given", "same"),
    [
        ('{"a": 1, "b": [2, null]}', '{"b": [2, null], "a": 1}', True),
        ("1", "1.0", True),
        ("1", "true", False),
        ("0", "false", False),
        ("0", "-0.0e5", True),
        ("0", "5e-324", False),
        ("null", "false", False),
        ('"1"', "1", False),
        ("[1, 2]", "[2, 1]", False),
        ("[1, 2]", "[1, 2, 3]", False),
        ('{"a": 1}', '{"a": 1, "b": 2}', False),
        ('{"a": 1, "b": 2}', '{"a": 1}', False),
        ('"a"', '"A"', False),
        ("{}", "[]", False),
        ("0.1", "0.10000001", False),
    ],
)
def test_equality_of_data(gold: str, given: str, same: bool) -> None:
    assert same_data(read_json(gold), read_json(given)) is same


def test_leniency() -> None:
    free, near = Leniency(unordered=True), Leniency(tolerance=0.01)
    assert same_data([1, [2, 3], {"a": [4, 5]}], [{"a": [5, 4]}, [3, 2], 1.0], free)
    assert not same_data([1, 1, 2], [1, 2, 2], free)
    assert not same_data([1, True], [1, 1], free)
    assert same_data([100.0], [100.9], near) and not same_data([100.0], [101.1], near)
    assert not same_data(10**400, 1.5, near)
    assert same_data([1.0, 2.0], [2.001, 1.001], Leniency(True, 0.01))


def rewards(settings: dict[str, Any], problem: Problem, texts: list[str]) -> list[Any]:
    verifier = build(VerifierConfig.model_validate({"kind": "json", **settings}))
    verdicts = verifier.verify([problem] * len(texts), texts)
    verifier.close()
    return [(v.outcome.value, v.reward) for v in verdicts]


RIGHT, WRONG, UNREADABLE = ("correct", 1.0), ("wrong", 0.0), ("unparseable", 0.0)


def test_where_the_data_stands() -> None:
    problem = Problem("a", "q", (), '{"a": 1}')
    texts = [
        '{"a": 1}',
        '<think>{"a": 2}</think>\n{"a": 1.0}',
        'First\n```json\n{"a": 2}\n```\nno:\n```json\n{"a": 1}\n```\nDone.',
        'Here: {"a": 1}',
        '```python\nx = {"a": 1}\n```',
        '<think>{"a": 1}',
        '```json\n{"a": 2}\n```',
    ]
    found = [RIGHT, RIGHT, RIGHT, UNREADABLE, UNREADABLE, UNREADABLE, WRONG]
    assert rewards({}, problem, texts) == found
    assert rewards({"place": "block"}, problem, texts[:3]) == [UNREADABLE, UNREADABLE, RIGHT]
    assert rewards({"place": "text"}, problem, texts[:3]) == [RIGHT, RIGHT, UNREADABLE]


SCHEMA = {
    "type": "object",
    "required": ["age"],
    "properties": {"age": {"type": "integer", "minimum": 0}, "next": {"$ref": "#"}},
}


def test_schemas_of_the_settings_and_of_rows() -> None:
    problem = Problem("a", "q", (), fields={"json_schema": '{"type": "array"}'})
    plain = Problem("b", "q", ())
    settings = {"compare": False, "json_schema": SCHEMA}
    texts = ['{"age": 3, "next": {"age": 0}}', '{"age": -1}', "{}", "[]", '{"age": 1, "next": {}}']
    assert rewards(settings, plain, texts) == [RIGHT, WRONG, WRONG, WRONG, WRONG]
    assert rewards(settings, problem, ["[]", "{}"]) == [RIGHT, WRONG]


def test_a_pattern_in_a_schema_cannot_hold_up_the_run() -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    verifier = build(
        VerifierConfig.model_validate(
            {
                "rewards": {"kind": "json", "compare": False, "json_schema": schema},
                "limits": {"seconds": 0.5},
            }
        )
    )
    begun = time.monotonic()
    verdicts = verifier.verify([Problem("a", "q", ())] * 2, ['"' + "a" * 60 + '!"', '"aa"'])
    verifier.close()
    assert [v.outcome for v in verdicts] == ["timeout", "correct"]
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "no JSON schema: type: 'objekt'"),
        ({"$ref": "https://example.com/s.json"}, "only references within it are followed"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "only references within it"),
        ({"x": "y" * 200_000}, "more than 100000"),
        ({"items": {"$ref": "#/$defs/a"}}, "refers to '#/\\$defs/a', which is not in it"),
        ({"$ref": "#name"}, "refers to '#name', which is not in it"),
    ],
)
def test_schemas_that_cannot_be_used_are_one_line(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        validate(VerifierConfig, {"kind": "json", "json_schema": schema})
    assert "\n" not in str(caught.value)
    problem = Problem("a", "q", (), "1", fields={"json_schema": schema})
    faults = verify_golds(build(VerifierConfig.model_validate("json")), [problem])
    assert said.replace("\\", "") in faults[0].reason


def test_references_within_a_schema_and_none_over_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within: list[dict[str, Any]] = [
        {"$defs": {"a/b": {"type": "string"}}, "$ref": "#/$defs/a~1b"},
        {"$defs": {"x": {"$anchor": "name", "type": "string"}}, "$ref": "#name"},
        {"anyOf": [{"type": "string"}, {"items": {"$ref": "#/anyOf/0"}}]},
    ]
    for schema in within:
        assert schema_fault(schema) is None
        assert misfit(json.dumps(schema), "s") is None
    fetched: list[str] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda url, *a, **k: fetched.append(str(url)))
    with pytest.raises(Exception, match="Unresolvable"):
        misfit('{"$ref": "http://127.0.0.1:9/s.json"}', 1)
    assert not fetched


def test_references_are_data_and_fit_their_schema() -> None:
    verifier = build(VerifierConfig.model_validate({"kind": "json", "json_schema": SCHEMA}))
    golds = ['{"age": 1}', "{", '{"age": "x"}', None]
    problems = [Problem(str(n), "q", (), gold) for n, gold in enumerate(golds)]
    faults = verify_golds(verifier, problems)
    verifier.close()
    assert [fault.problem_id for fault in faults] == ["1", "2", "3"]
    assert "no JSON" in faults[0].reason
    assert "does not fit its schema: age: 'x' is not of type 'integer'" in faults[1].reason
    assert "compare: false" in faults[2].reason


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    schema = {"title": "one that no other test has asked about"}
    with pytest.raises(UserError, match=r"pip install 'lydite\[schema\]'") as caught:
        validate(VerifierConfig, {"kind": "json", "json_schema": schema})
    assert "\n" not in str(caught.value)


DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)  # fmt: skip


@given(DATA, DATA)
def test_data_equals_itself_however_written_and_order_is_all_that_leniency_forgives(
    one: Any, other: Any
) -> None:
    again = read_json(json.dumps(one, indent=1, sort_keys=True, ensure_ascii=False))
    assert same_data(one, again)
    free = Leniency(unordered=True)
    assert same_data([one, other], [other, one], free)
    assert same_data(one, other) == same_data(other, one)
    if same_data(one, other):
        assert same_data(one, other, free)
