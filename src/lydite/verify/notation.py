"""One spelling for each way of writing the same mathematics: Unicode and LaTeX variants become
plain LaTeX.
"""

from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "﹣": "-", "×": r"\times ", "÷": "/", "·": r"\cdot ",
    "∙": r"\cdot ", "⋅": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "∈": r"\in ",
    "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "ø": r"\emptyset ", "°": r"^{\circ}",
    "º": r"^{\circ}", "…": r"\ldots ", "′": "'", "，": ",", "、": ",", "；": ";", "：": ":",
    "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "⟨": r"\langle ", "⟩": r"\rangle ",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")

_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\d+|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*(and|or)\s*\}", r" \1 "),
        (
            r"\\(?:displaystyle|textstyle|large|Large|LARGE|huge|Huge|small|normalsize|bf|rm|it|limits)\b\s*",
            "",
        ),
        (
            r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr)(?![A-Za-z])\s*\.?(?=[()\[\]|\\{}<>/]|\s|$)",
            "",
        ),
        (r"\\(?:boxed|fbox)(?![A-Za-z])", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\[,;:!> ]|~|\\quad\b|\\qquad\b|\\thinspace\b|\\hspace\*?\{[^{}]*\}", " "),
        (r"\\[dtc]frac\b", r"\\frac"),
        (r"\\(?:dfrac|tfrac)(?=\d)", r"\\frac"),
        (r"\\(?:leq|leqslant)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geq|geqslant)(?![A-Za-z])", r"\\ge "),
        (r"\\(?:neq|not\s*=)(?![A-Za-z])", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
        (r"\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])", r"\\ldots "),
        (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![A-Za-z])", r"^{\\circ}"),
        (r"\\mathrm\s*\{\s*([ei])\s*\}", r"\1"),
        (r"\\frac\s+", r"\\frac"),
        (r"(\\frac\{[^{}]*\})\s+\{", r"\1{"),
        (r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\{[^{}]*\})\s*(\d|[A-Za-z])", r"\1{\2}"),
        (r"\\sqrt\s*(\d|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s+", r"\\sqrt"),
    )
)
_OUTER = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathsf|mbox|operatorname)\s*\{([^{}]*)\}"
)
TRAILING = " \t\n.,;:。，；！"


def normalise(text: str) -> str:
    """The text in one plain LaTeX spelling; numbers, order and structure are untouched."""
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    for symbol, latex in _SYMBOLS.items():
        if symbol in text:
            text = text.replace(symbol, latex)
    text = unicodedata.normalize("NFKC", text)
    text = strip_outer(text)
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return strip_outer(re.sub(r"\s+", " ", text))


def strip_outer(text: str) -> str:
    """Drops mathematics delimiters and emphasis around the whole text, and punctuation after it."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if not text.endswith((r"\,", r"\;", r"\!", r"\:")):
            text = text.rstrip(TRAILING)
        for opening, closing in _OUTER:
            inside = text[len(opening) : len(text) - len(closing)]
            wraps = (
                len(text) > len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
            )
            if wraps and opening not in inside and not inside.endswith("\\"):
                text = inside
    return text


def plain_words(text: str) -> str:
    """The text with ``\\text{…}`` and the like opened, spaces collapsed, letter case dropped."""
    return (
        " ".join(_TEXT.sub(r"\1", text).replace("\\", "").split())
        .strip(TRAILING + "*$\"'")
        .casefold()
    )


def open_text(text: str) -> str:
    """The text with ``\\text{…}``-like wrappers opened."""
    return _TEXT.sub(r"\1", text).strip()


def squeeze(text: str) -> str:
    """The text without idle spaces or single-symbol braces: equal squeezes are the same writing."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text))
