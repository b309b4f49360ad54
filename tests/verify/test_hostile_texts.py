"""Whatever a model writes, the rewards that read text give a finite number, the same each time."""

import math

import pytest

from lydite.types import Problem
from lydite.verify import ComposedVerifier, VerifierConfig, build

REWARDS = [
    {"kind": "choice"},
    {"kind": "choice", "name": "several", "multiple": True},
    {"kind": "json", "compare": False, "json_schema": {"type": "object"}},
    {"kind": "regex", "pattern": r"\d+$"},
    {"kind": "instruction", "constraints": {"words": 3, "include": "x", "json_schema": {}}},
    {"kind": "format"},
    {"kind": "language", "others": ["de"]},
    {"kind": "language", "language": "ja", "name": "japanese"},
    {"kind": "length", "limit": 100},
    {"kind": "length", "rule": "relative", "name": "relative"},
    {"kind": "repetition"},
    {"kind": "gate", "require": "format", "then": "exact"},
    {"kind": "cascade", "rewards": ["exact", "choice"], "pass_on": "wrong"},
]
TEXTS = [
    "",
    " \n\t",
    "\x00\x01\x7f",
    "\ud800 lone",
    "\u202e(B)\u202c",
    "B\u200b",
    "e\u0301" * 2000,
    "<think>" * 3000,
    "</think>" * 3000,
    "<answer>" * 3000 + "</answer>" * 3000,
    "\\boxed{" * 3000,
    "{" * 20_000,
    "[" * 20_000 + "]" * 20_000,
    "```json\n" * 3000,
    '{"a": ' * 50 + "1" + "}" * 50,
    "(A)" * 5000,
    "9" * 20_000,
    "answer is " * 3000,
    "$" * 20_000,
    "Ａ" * 5000,
    "中" * 20_000,
    "🙂" * 5000,
    "NaN",
    "-Infinity",
]


@pytest.fixture(scope="module")
def verifier() -> ComposedVerifier:
    pytest.importorskip("lingua")
    config = {"rewards": REWARDS, "limits": {"seconds": 1.0, "workers": 1}}
    return build(VerifierConfig.model_validate(config))


def test_finite_and_the_same_each_time_and_in_any_company(verifier: ComposedVerifier) -> None:
    problem = Problem("a", "q", (), "B")
    verdicts = verifier.verify([problem] * len(TEXTS), TEXTS)
    for text, verdict in zip(TEXTS, verdicts, strict=True):
        assert verdict.reward is not None and math.isfinite(verdict.reward), (text[:20], verdict)
    again = verifier.verify([problem] * len(TEXTS), TEXTS[::-1])[::-1]
    verifier.close()
    for first, second in zip(verdicts, again, strict=True):
        assert (first.parts, first.outcome) == (second.parts, second.outcome)
