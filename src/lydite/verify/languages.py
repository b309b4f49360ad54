"""The languages that can be told apart, by ISO 639-1 code, and the scripts they are written in."""

from __future__ import annotations

import difflib
import re

_LATIN = (
    "af Afrikaans sq Albanian az Azerbaijani eu Basque nb Bokmal bs Bosnian ca Catalan hr Croatian "
    "cs Czech da Danish nl Dutch en English eo Esperanto et Estonian fi Finnish fr French "
    "lg Ganda de German hu Hungarian is Icelandic id Indonesian ga Irish it Italian la Latin "
    "lv Latvian lt Lithuanian ms Malay mi Maori nn Nynorsk pl Polish pt Portuguese ro Romanian "
    "sn Shona sk Slovak sl Slovene so Somali st Sotho es Spanish sw Swahili sv Swedish tl Tagalog "
    "ts Tsonga tn Tswana tr Turkish vi Vietnamese cy Welsh xh Xhosa yo Yoruba zu Zulu"
)
_OTHER = {
    "cyrillic": "be Belarusian bg Bulgarian kk Kazakh mk Macedonian mn Mongolian ru Russian "
    "sr Serbian uk Ukrainian",
    "arabic": "ar Arabic fa Persian ur Urdu",
    "devanagari": "hi Hindi mr Marathi",
    "greek": "el Greek",
    "armenian": "hy Armenian",
    "hebrew": "he Hebrew",
    "bengali": "bn Bengali",
    "gurmukhi": "pa Punjabi",
    "gujarati": "gu Gujarati",
    "tamil": "ta Tamil",
    "telugu": "te Telugu",
    "thai": "th Thai",
    "georgian": "ka Georgian",
    "hangul": "ko Korean",
    "kana": "ja Japanese",
    "han": "zh Chinese",
}

RANGES = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
    "\uff21-\uff3a\uff41-\uff5a",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "cyrillic": "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
    "armenian": "\u0531-\u058f",
    "hebrew": "\u05d0-\u05f4",
    "arabic": "\u0620-\u064a\u066e-\u06d3\u06d5-\u06ff\u0750-\u077f\u08a0-\u08c7\ufb50-\ufdff"
    "\ufe70-\ufefc",
    "devanagari": "\u0900-\u0963\u0970-\u097f",
    "bengali": "\u0980-\u09e3",
    "gurmukhi": "\u0a00-\u0a65\u0a70-\u0a7f",
    "gujarati": "\u0a80-\u0ae3",
    "tamil": "\u0b80-\u0be5",
    "telugu": "\u0c00-\u0c65",
    "thai": "\u0e01-\u0e4e",
    "georgian": "\u10a0-\u10ff\u1c90-\u1cbf",
    "hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",
    "kana": "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "han": "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
}
"""The letters of each script, as ranges for a character class."""

UNSPACED_SCRIPTS = frozenset({"han", "kana", "thai"})


def _table(script: str, listed: str) -> dict[str, tuple[str, str]]:
    words = listed.split()
    return {code: (name, script) for code, name in zip(words[::2], words[1::2], strict=True)}


LANGUAGES: dict[str, tuple[str, str]] = _table("latin", _LATIN) | {
    code: entry
    for script, listed in _OTHER.items()
    for code, entry in _table(script, listed).items()
}
"""English name and script by code. Japanese is written in kana, and in Han beside it."""

COMMON = ("en", "fr", "de", "es", "it", "pt", "nl", "ru", "uk", "bg", "ar", "fa", "ur", "hi", "mr")
"""What a target is told from by default: those of its script."""


def code_of(language: str) -> str:
    """The ISO 639-1 code of a language given by code or English name.

    Raises:
        ValueError: it is none of :data:`LANGUAGES`.
    """
    asked = re.split(r"[-_]", language.strip().lower())[0]
    names = {name.lower(): code for code, (name, _) in LANGUAGES.items()}
    found = asked if asked in LANGUAGES else names.get(asked)
    if found is None:
        near = difflib.get_close_matches(asked, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "give an ISO 639-1 code, such as en or zh"
        raise ValueError(f"no language {language!r}; {hint}")
    return found
