"""One spelling for each way of writing the same mathematics: Unicode and LaTeX variants become
plain LaTeX.
"""

from __future__ import annotations

import re
import unicodedata

_SYMBOLS = {
    "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "∙": r"\cdot ", "⋅": r"\cdot ", "•": r"\cdot ",
    "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ", "≈": r"\approx ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≦": r"\le ", "≧": r"\ge ",
    "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ",
    "ø": r"\emptyset ", "Ø": r"\emptyset ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
    "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "∖": r"\setminus ",
    "℃": r"^{\circ}C", "℉": r"^{\circ}F", "°": r"^{\circ}", "º": r"^{\circ}", "˚": r"^{\circ}",
    "…": r"\ldots ", "⋯": r"\ldots ", "′": "'", "’": "'", "‘": "'", "，": ",", "、": ",",
    "；": ";", "：": ":", "∶": ":", "。": ".", "⁄": "/", "∕": "/", "～": r"\approx ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ",
    "μ": r"\mu ", "ω": r"\omega ", "φ": r"\varphi ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∨": r"\lor ",
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "【": "[", "】": "]", "￥": "¥", "＄": "$",
}  # fmt: skip
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))
_MINUS = re.compile("[−–—‐‑‒―﹣－➖˗]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufe00-\ufe0f]")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
# A digit with a line or a dot above it is a period of a repeating decimal.
_OVERLINED = re.compile("(?:\\d[\u0304\u0305])+")
_DOTTED = re.compile("(\\d)\u0307")

_FONTS = (
    r"text|textbf|textit|textrm|textnormal|texttt|textsf|emph|mathrm|mathbf|mathsf|mathit|mathtt"
    r"|mbox|operatorname|bm|boldsymbol|pmb"
)
_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\(?:text|mathrm)\s*\{\s*(\\?\$|€|£|USD|Rs\.?)\s*\}", r"\1 "),
        (r"\\(?:text|mathrm)\s*\{\s*(,|\^\{\\circ\})\s*\}", r"\1"),
        (r"(?<=\d)\{\.\}(?=\d)", "."),
        (
            r"^\\(?:mathbf|vec|boldsymbol|bm|hat|overrightarrow)\s*\{?\s*([A-Za-z]{1,2})\s*\}?\s*=",
            r"\1 =",
        ),
        (r"\\bigcup(?![A-Za-z])", r"\\cup "),
        (r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*,?\s*(and|or|to)\s*,?\s*\}", r" \1 "),
        (
            r"\\(?:text|mathrm|textrm|operatorname\*?)\s*"
            r"\{\s*(arc(?:sin|cos|tan|cot)|sin|cos|tan|cot|sec|csc|ln|log|exp|lg|cis)\s*\}",
            r"\\\1 ",
        ),
        (
            r"\\(?:displaystyle|textstyle|scriptstyle|large|Large|LARGE|huge|Huge|small|normalsize"
            r"|bf|rm|it|em|limits|nolimits|bfseries|centering)(?![A-Za-z])\s*",
            "",
        ),
        (
            r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|middle)(?![A-Za-z])"
            r"\s*\.?(?=[()\[\]|\\{}<>/]|\s|$)",
            "",
        ),
        (r"\\(?:boxed|fbox|underline|phantom|mathop|ensuremath|num|mathstrut)(?![A-Za-z])", ""),
        (r"\\(?:textcolor|color)\s*\{[A-Za-z]*\}", ""),
        (r"\\!|\\+\s*$", ""),
        (r"\\textsuperscript\s*\{", "^{"),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}", r"\\frac{\1}{\2}"),
        (r"^([^{}]*)\\over(?![A-Za-z])([^{}]*)$", r"\\frac{\1}{\2}"),
        (r"\{\s*\\?,\s*\}", ","),
        (
            r"(?<!\\)\\[,;:> ]|~|\\(?:quad|qquad|thinspace|enspace|space|hfill|newline)(?![A-Za-z])"
            r"|\\[hv]space\*?\{[^{}]*\}",
            " ",
        ),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\binom\s*(\d|[a-z])\s*(\d|[a-z])", r"\\binom{\1}{\2}"),
        (r"\\binom\s*(\d|[a-z])\s*\{", r"\\binom{\1}{"),
        (r"(\\binom\s*\{[^{}]*\})\s*(\d|[a-z])", r"\1{\2}"),
        (r"\\(?:leq|leqslant|leqq)(?![A-Za-z])", r"\\le "),
        (r"\\(?:geq|geqslant|geqq)(?![A-Za-z])", r"\\ge "),
        (r"\\neq(?![A-Za-z])|\\not\s*=", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (
            r"\\(?:varnothing|empty)(?![A-Za-z])"
            r"|\\(?:text|mathrm)\s*\{\s*(?:the\s+)?empty set\s*\}",
            r"\\emptyset ",
        ),
        (r"\\(?:dots|cdots|dotsc|dotsb|vdots)(?![A-Za-z])|(?<=[,\s\d])\.\.\.", r"\\ldots "),
        (r"\\(?:lvert|rvert|vert|mid)(?![A-Za-z])", "|"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:lbrack)(?![A-Za-z])", "["),
        (r"\\(?:rbrack)(?![A-Za-z])", "]"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\(?:infin)(?![A-Za-z])", r"\\infty "),
        (r"\\(?:backslash|smallsetminus)(?![A-Za-z])", r"\\setminus "),
        (r"\\(?:pounds|textsterling)(?![A-Za-z])", "£"),
        (r"\\(?:euro|texteuro|EUR)(?![A-Za-z])(?:\{\})?", "€"),
        (r"\\(?:yen|textyen)(?![A-Za-z])", "¥"),
        (r"\\textdollar(?![A-Za-z])", r"\\$"),
        (
            r"\^\s*\{?\s*(?:\\text\s*\{)?\s*(?:\\circ|\\degree|o(?![A-Za-z]))\s*\}?(?:\s*\})?"
            r"|\\(?:degree|textdegree)(?![A-Za-z])",
            r"^{\\circ}",
        ),
        (r"\\(?:mathrm|text|rm)\s*\{\s*([ei])\s*\}", r"\1"),
        (r"\\prime(?![A-Za-z])", "'"),
        (r"\^\s*\{?\s*'\s*\}?", "'"),
        (r"\\(?:bar)(?![A-Za-z])", r"\\overline"),
        (r"\\overline\s+(\d)", r"\\overline{\1}"),
        (r"\\overline\s*(?=\d)(\d)", r"\\overline{\1}"),
        (r"\\frac\s+", r"\\frac"),
        (r"(\\frac\{[^{}]*\})\s+\{", r"\1{"),
        (r"\\frac\s*(\d|[A-Za-z])\s*(\d|[A-Za-z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d|[A-Za-z])\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\{[^{}]*\})\s*(\d|[A-Za-z])", r"\1{\2}"),
        (r"\\sqrt\s*(\d|[A-Za-z])", r"\\sqrt{\1}"),
        (r"\\sqrt\s+", r"\\sqrt"),
    )
)  # fmt: skip
_OUTER = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))
_TEXT = re.compile(rf"\\(?:{_FONTS})\*?\s*\{{([^{{}}]*)\}}")
_WRAPPED = re.compile(
    r"\\(?:math|text)(?:bf|rm|sf|it|tt|normal)\s*\{([^{}A-Za-z]*|\\[a-z]+\{[^{}]*\}\{[^{}]*\})\}"
)
_WRAPPED_DIGITS = re.compile(rf"\\(?:{_FONTS})\s*\{{\s*([-\d.,:/]+|[A-J](?:\s*,\s*[A-J])+)\s*\}}")
TRAILING = " \t\n.,;:。，；！✓✔✅"
_MARKUP = re.compile(r"[\\~{^]|\.\.")
_INFINITY = re.compile(r"(?<=[-+(,\[\s])oo(?=[\s,)\]]|$)")
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:/\d+)?")


def normalise(text: str) -> str:
    """The text in one plain LaTeX spelling; numbers, order and structure are untouched."""
    text = text.strip()
    if text.isascii() and _PLAIN_NUMBER.fullmatch(text):
        return text
    if not text.isascii():
        text = _ascii(text)
    text = _INFINITY.sub(r"\\infty ", strip_outer(text))
    if _MARKUP.search(text):
        for pattern, replacement in _REPLACEMENTS:
            text = pattern.sub(replacement, text)
        text = _WRAPPED_DIGITS.sub(r"\1", text)
        text = _WRAPPED.sub(r"{\1}", text)
    return strip_outer(re.sub(r"\s+", " ", text))


def _ascii(text: str) -> str:
    """Mathematical Unicode as LaTeX; letters of other scripts stay."""
    text = _INVISIBLE.sub("", text)
    text = _OVERLINED.sub(lambda m: r"\overline{" + re.sub(r"\D", "", m[0]) + "}", text)
    text = _DOTTED.sub(r"\\dot{\1}", text)
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉ₙ]+", lambda m: "_{" + m[0].translate(_SUBSCRIPTS) + "}", text)
    text = re.sub(r"√\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"√\s*(\d+)", r"\\sqrt{\1}", text)
    text = _VULGAR.sub(_vulgar, text)
    text = _MINUS.sub("-", text)
    text = _SYMBOL.sub(lambda m: _SYMBOLS[m[0]], text)
    text = unicodedata.normalize("NFKC", text)
    return re.sub(r"[^\x00-\x7f]", _digit, text)


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return f"\\frac{{{top}}}{{{bottom}}}"


def _digit(match: re.Match[str]) -> str:
    value = unicodedata.decimal(match[0], None)
    return match[0] if value is None else str(value)


def strip_outer(text: str) -> str:
    """Drops mathematics delimiters and emphasis around the whole text, and punctuation after it."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if not text.endswith((r"\,", r"\;", r"\!", r"\:")) and not text.endswith("..."):
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
        " ".join(open_text(text).replace("\\", "").split()).strip(TRAILING + "*$\"'{}").casefold()
    )


def open_text(text: str) -> str:
    """The text with ``\\text{…}``-like wrappers opened, two deep."""
    return _TEXT.sub(r"\1", _TEXT.sub(r"\1", text)).strip()


def squeeze(text: str) -> str:
    """The text without idle spaces or single-symbol braces: equal squeezes are the same writing."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text))
