"""Readability: the share of well-formed answers, and how far languages are mixed."""

import pytest

from lydite.config import UserError, validate
from lydite.train.readability import ReadabilityConfig, readability

GOOD = "<think>first 3+4=7 then 1+2=3</think><answer>37</answer>"
MIXED = "<think>先 3+4=7 then 1+2=3</think><answer>37</answer>"  # one word of two
BARE = "先 3+4=7 so 37"  # one word of two
SILENT = "<think>3+4=7</think><answer>7</answer>"  # no words


def config(**changes):
    return validate(ReadabilityConfig, {"answer": "tag", "language": "en", **changes}, "r")


def test_by_hand():
    found = readability([GOOD, MIXED, BARE, SILENT], config())
    assert found == {"well_formed": 0.75, "mixing": pytest.approx((0 + 0.5 + 0.5) / 3)}


def test_a_text_without_words_mixes_nothing_and_counts_for_nothing():
    assert readability([SILENT], config()) == {"well_formed": 1.0}
    assert readability([SILENT, MIXED], config())["mixing"] == 0.5
    assert readability([], config()) == {}


def test_what_is_read_and_what_counts_can_be_said():
    assert readability([MIXED], config(language=None)) == {"well_formed": 1.0}
    assert readability([MIXED], config(language="Chinese"))["mixing"] == 0.5
    assert readability([BARE], config(thinking="optional", answer="any"))["well_formed"] == 1.0
    # No tag is closed: nothing of it is thinking, all of it is the answer.
    assert "mixing" not in readability([BARE], config(part="thinking"))
    assert readability([BARE], config(part="answer"))["mixing"] == 0.5
    with pytest.raises(UserError, match="no language 'klingon'"):
        config(language="klingon")
