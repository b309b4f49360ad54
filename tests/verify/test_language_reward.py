"""The share of words in a language, by counts made by hand."""

import time

import pytest

from lydite.config import UserError, validate
from lydite.types import Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.language import language_share, rivals_of, words_of

ANY = Problem("a", "q", ())
ENGLISH = "First we compute the sum of all the numbers, then we halve it."  # 13 words
GERMAN = "Zuerst berechnen wir die Summe aller Zahlen und teilen sie dann durch zwei."  # 13
SPANISH = "Primero calculamos la suma de todos los números y luego la dividimos entre dos."


def needs_lingua() -> None:
    pytest.importorskip("lingua")


def test_what_counts_as_a_word() -> None:
    text = (
        "So $x + total = 3$ and `for word in words` and \\frac{alpha}{2} x 12 kg3 is fine.\n"
        "```python\nprint(hello)\n```\n"
        "See https://example.com/some/page don't \\(a text\\) <b>go</b>"
    )
    words = [word for sentence in words_of(text) for _, word in sentence]
    assert words == ["So", "and", "and", "alpha", "is", "fine", "See", "don't", "go"]
    assert words_of("$5 and $6") == [[("latin", "and")]]
    assert words_of("12 + 3 = 15, x") == []


@pytest.mark.parametrize(
    ("text", "target", "share"),
    [
        ("我们先算一下。", "zh", 1.0),
        ("我们 compute 和", "zh", 3 / 4),
        ("まず計算する。", "ja", 1.0),
        ("まず計算する。", "zh", 0.0),
        ("計算終了。", "ja", 1.0),  # a few Han characters without kana
        ("首先我们计算苹果的总数", "ja", 0.0),
        ("먼저 합을 구한다 then", "ko", 3 / 4),
        ("Πρώτα το άθροισμα now", "el", 3 / 4),
        ("сначала so сумма", "zh", 0.0),
        ("ขั้น", "th", 1.0),
    ],
)
def test_scripts_that_decide_alone_need_no_library(text: str, target: str, share: float) -> None:
    assert language_share(text, target, []) == pytest.approx(share)
    assert rivals_of("zh", None) == rivals_of("ko", None) == ()


def test_no_words() -> None:
    assert language_share("1 + 1 = 2", "en") is None
    verdict = build(VerifierConfig.model_validate("language")).verify([ANY], ["$x=2$"])[0]
    assert (verdict.outcome, verdict.reward) == ("unparseable", 0.0)


def test_languages_of_one_script_are_told_apart() -> None:
    needs_lingua()
    for text, code in ((ENGLISH, "en"), (GERMAN, "de"), (SPANISH, "es")):
        for target in ("en", "de", "es"):
            assert language_share(text, target) == float(code == target), (text, target)
    assert language_share(f"{ENGLISH} {GERMAN}", "en") == pytest.approx(0.5)
    assert language_share(f"{ENGLISH}\n我们先算一下总数", "en") == pytest.approx(13 / 21)
    assert language_share("Сначала вычислим сумму всех чисел.", "ru") == 1.0
    assert language_share("Спершу обчислимо суму всіх чисел.", "ru") == 0.0
    # What is short or technical is not held against the target.
    for short in ("We get 4.", "Okay.", "Sparse gradient descent converges linearly."):
        assert language_share(short, "en") == 1.0


def test_parts_and_settings() -> None:
    needs_lingua()
    text = f"<think>{GERMAN}</think>{ENGLISH}"
    for part, share in (("whole", 0.5), ("thinking", 0.0), ("answer", 1.0)):
        settings = {"kind": "language", "language": "English", "part": part}
        verdict = build(VerifierConfig.model_validate(settings)).verify([ANY], [text])[0]
        assert verdict.reward == pytest.approx(share)
        assert verdict.outcome == ("correct" if share > 0.5 else "wrong")
    with pytest.raises(UserError, match="no language 'Germn'; did you mean german"):
        validate(VerifierConfig, {"kind": "language", "language": "Germn"})


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'lydite\[language\]'"):
        build(VerifierConfig.model_validate("language"))
    for settings in ({"language": "zh"}, {"language": "en", "others": []}):
        build(VerifierConfig.model_validate({"kind": "language", **settings}))


@pytest.mark.parametrize("unit", ["a", "$", "\\(", "<a", "`", "```\n", "。", "中", "x ", "a_1 "])
def test_hostile_texts_cost_no_more_than_their_length(unit: str) -> None:
    begun = time.monotonic()
    language_share(unit * (400_000 // len(unit)), "en", [])
    assert time.monotonic() - begun < 20
