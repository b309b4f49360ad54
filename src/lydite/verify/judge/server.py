"""Chat completions of an OpenAI-compatible server, over the standard library's HTTP.

Bounded in every direction: the whole of a reply has a deadline and a size, a request is sent a
given number of times, redirects are not followed (they would carry the key elsewhere).
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lydite.config import UserError
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.judge.prompt import VERDICT_SCHEMA, Unreadable

MAX_REPLY_BYTES = 2**20
MAX_WAIT_SECONDS = 60.0
_AGAIN = frozenset({408, 409, 425, 429})
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "verdict", "strict": True, "schema": VERDICT_SCHEMA},
}


class Down(Exception):
    """The server did not answer, however often it was asked. One line."""


class Declined(Exception):
    """The server answers, but not this request. One line."""


class _Failed(Exception):
    """One attempt came to nothing, and another may not. ``wait``: seconds that the server asks
    for.
    """

    def __init__(self, line: str, wait: float = 0.0) -> None:
        super().__init__(line)
        self.wait = wait


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class ChatServer:
    """The server of a judge. Safe to use from any thread."""

    def __init__(self, config: JudgeConfig, name: str) -> None:
        """
        Raises:
            UserError: the key is to be in an environment variable, and is not.
        """
        self._config = config
        self._requests = config.requests
        self._name = name
        self._url = f"{config.base_url}/chat/completions"
        self._headers = {"Content-Type": "application/json", **_authorization(config, name)}
        self._closed = threading.Event()
        self._structured = config.requests.structured != "never"
        self._jitter = random.Random(0)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if urlsplit(config.base_url).hostname in ("localhost", "127.0.0.1", "::1"):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, messages: list[dict[str, str]]) -> str:
        """What the model replies.

        Raises:
            Down: the server is out of reach, too slow, overloaded or broken.
            Declined: the server does not take this request.
            Unreadable: its reply holds no text.
            UserError: the address, the model's name or the key is wrong.
        """
        structured = self._structured
        try:
            return self._persist(messages, structured)
        except Declined:
            if not structured or self._requests.structured == "always":
                raise
        # Some servers know no response_format. It is left out from now on if that was the reason.
        reply = self._persist(messages, structured=False)
        self._structured = False
        return reply

    def close(self) -> None:
        """Ends the waiting for retries."""
        self._closed.set()

    def _persist(self, messages: list[dict[str, str]], structured: bool) -> str:
        body = self._body(messages, structured)
        attempts = 1 + self._requests.retries
        for attempt in range(attempts):
            try:
                return _content(self._post(body))
            except _Failed as failure:
                line = str(failure)
                wait = self._requests.backoff * 2**attempt * self._jitter.uniform(0.5, 1.0)
                wait = min(MAX_WAIT_SECONDS, max(wait, failure.wait))
            if attempt + 1 < attempts and self._closed.wait(wait):
                break
        times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
        raise Down(f"the judge at {self._config.base_url} gave no reply in {times}: {line}")

    def _body(self, messages: list[dict[str, str]], structured: bool) -> bytes:
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._requests.max_tokens,
            **({"response_format": _SCHEMA} if structured else {}),
            **self._requests.body,
        }
        return json.dumps({key: value for key, value in body.items() if value is not None}).encode()

    def _post(self, body: bytes) -> bytes:
        deadline = time.monotonic() + self._requests.seconds
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            with self._opener.open(request, timeout=self._requests.seconds) as reply:
                return _read(reply, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise self._explained(error, deadline) from None
        except TimeoutError:
            raise _Failed(f"nothing within {self._requests.seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                raise _Failed(f"nothing within {self._requests.seconds:g} s") from None
            raise _Failed(_line(reason)) from None

    def _explained(self, error: urllib.error.HTTPError, deadline: float) -> Exception:
        """What a status other than success means."""
        try:
            said = _message(_read(error, deadline))
        except (_Failed, OSError, http.client.HTTPException):
            said = ""
        status = f"{error.code}{f' ({said})' if said else ''}"
        if error.code in _AGAIN or error.code >= 500:
            return _Failed(f"it replied {status}", _seconds(error.headers.get("Retry-After")))
        where = f"{self._name}: {self._config.base_url}"
        if error.code in (401, 403):
            return UserError(
                f"{where} refuses the request: {status}; name the environment variable with its "
                "key in api_key_env"
            )
        if error.code == 404 or 300 <= error.code < 400:
            return UserError(
                f"{where} has no such place or model: {status}; check base_url (it often ends in "
                f"/v1) and model ({self._config.model})"
            )
        return Declined(f"the judge at {self._config.base_url} does not take it: {status}")


def _authorization(config: JudgeConfig, name: str) -> Mapping[str, str]:
    if config.api_key_env is None:
        return {}
    key = os.environ.get(config.api_key_env, "").strip()
    if not key:
        raise UserError(
            f"{name}.api_key_env: the environment variable {config.api_key_env} is not set; export "
            "it with the server's key"
        )
    if not key.isascii() or not key.isprintable():
        raise UserError(
            f"{name}.api_key_env: {config.api_key_env} holds characters that no key has; set it "
            "again"
        )
    return {"Authorization": f"Bearer {key}"}


def _read(reply: Any, deadline: float) -> bytes:
    """The body, however slowly it drips."""
    parts: list[bytes] = []
    size = 0
    while part := reply.read1(1 << 16):
        size += len(part)
        parts.append(part)
        if size > MAX_REPLY_BYTES:
            raise _Failed(f"a reply of more than {MAX_REPLY_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise _Failed("a reply that does not end")
    return b"".join(parts)


def _content(body: bytes) -> str:
    """The text of the first choice."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Unreadable(f"the judge's server sent no chat completion: {body[:80]!r}") from None
    if not isinstance(content, str):
        raise Unreadable("the judge's reply holds no text; requests.max_tokens may be too small")
    return content


def _message(body: bytes) -> str:
    """What an error says, as servers spell it."""
    try:
        found = json.loads(body)
        error = found.get("error", found)
        said = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        said = body.decode("utf-8", "replace")
    return _line(said or "")[:200]


def _seconds(header: str | None) -> float:
    try:
        wait = float(header or 0)
    except ValueError:
        return 0.0
    return wait if 0 <= wait < float("inf") else 0.0


def _line(said: object) -> str:
    return " ".join(str(said).split())
