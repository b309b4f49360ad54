"""The languages that programs may be written in.

To add one, write a :class:`Language`: the tags that its code blocks carry, the file that the
program is written to, and the commands that compile and run it in the sandbox's work folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from lydite.config import UserError
from lydite.verify.code.javascript import JAVASCRIPT_CALL

LanguageName = Literal["python", "cpp", "javascript"]


@dataclass(frozen=True, slots=True)
class Language:
    """``tags`` are those of its code blocks, ``file`` what the program is called in the sandbox.
    ``compile`` writes the binary (``binary`` from then on) to standard output; ``run`` runs the
    program; ``call`` makes one function call: it reads ``{"name", "args", "kwargs", "nonce"}`` from
    standard input and writes the reply to standard output, which the candidate must not hold;
    ``None`` where only whole programs can be checked. Python has no commands: the sandbox's own
    interpreter runs it. ``support`` are further files beside the program, ``visible`` and
    ``compile_visible`` what the program and the compiler see of this machine, ``memory_mb`` what
    the language's own runtime needs on top of the limit.
    """

    name: str
    tags: frozenset[str]
    file: str = ""
    compile: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    call: tuple[str, ...] | None = None
    binary: str = ""
    support: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    visible: tuple[str, ...] = ()
    compile_visible: tuple[str, ...] = ()
    memory_mb: int = 0
    tools: tuple[str, ...] = ()
    install: str = ""

    def require(self) -> None:
        """Raises ``UserError`` when a tool of the language is not on this machine."""
        for tool in self.tools:
            if shutil.which(tool) is None:
                raise UserError(
                    f"verifier.language {self.name}: no {tool!r} on this machine; {self.install}"
                )


_SYSTEM = ("/usr", "/lib", "/lib64", "/bin")
_COMPILE_CPP = "g++ -O2 -std=c++17 -static -s -o main main.cpp && cat main"

LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        "python": Language("python", frozenset({"python", "py", "python3", "py3"}), call=()),
        "cpp": Language(
            "cpp",
            frozenset({"cpp", "c++", "cc", "cxx"}),
            file="main.cpp",
            compile=("sh", "-c", _COMPILE_CPP),
            run=("./main",),
            binary="main",
            compile_visible=_SYSTEM,
            tools=("g++",),
            install="install it (Debian, Ubuntu: apt-get install g++)",
        ),
        "javascript": Language(
            "javascript",
            frozenset({"javascript", "js", "node", "nodejs"}),
            file="main.js",
            run=("node", "main.js"),
            call=("node", "call.js"),
            support=MappingProxyType({"call.js": JAVASCRIPT_CALL}),
            visible=_SYSTEM,
            memory_mb=2048,
            tools=("node",),
            install="install it (Debian, Ubuntu: apt-get install nodejs)",
        ),
    }
)
