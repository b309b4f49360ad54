"""Requests to an OpenAI-compatible server, over the standard library's HTTP: for whoever asks one.

Bounded in every direction: the whole of a reply has a deadline and a size, a request is sent a
given number of times, redirects are not followed (they would carry the key elsewhere). Imports
without torch.
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
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from lydite.config import Config, UserError

MAX_REPLY_BYTES = 2**20
MAX_WAIT_SECONDS = 60.0
_AGAIN = frozenset({408, 409, 425, 429})


class RequestsConfig(Config):
    """How a server is asked."""

    seconds: float = Field(
        default=120.0, gt=0, description="Wall-clock seconds that one reply may take."
    )
    retries: int = Field(
        default=4,
        ge=0,
        le=20,
        description="How often a request is sent again when the server is out of reach, too slow, "
        "overloaded (429) or broken (5xx).",
    )
    backoff: float = Field(
        default=1.0,
        gt=0,
        description="Seconds before the first retry, doubled each time; a longer `Retry-After` of "
        "the server is kept to, up to a minute.",
    )
    concurrency: int = Field(
        default=8, ge=1, le=256, description="Requests that are under way at once."
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Which server, and who says so: ``field`` is its settings' place in the recipe, ``whose`` what
    a person calls it (``the judge``). ``base_url`` is the address up to the endpoint, ``model`` its
    name there, ``api_key_env`` the environment variable with its key.
    """

    field: str
    whose: str
    base_url: str
    model: str
    api_key_env: str | None = None


def base_address(value: str, endpoint: str) -> str:
    """An address as written, without a slash or ``endpoint`` at its end.

    Raises:
        ValueError: it is none, or holds a password.
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is no address; write one like http://localhost:8000/v1")
    if parts.username or parts.password:
        raise ValueError(
            "the address holds a password; put the key into an environment variable and name "
            "it in api_key_env"
        )
    return value.rstrip("/").removesuffix(endpoint)


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


class Server:
    """One server. Safe to use from any thread."""

    def __init__(
        self, place: Place, requests: RequestsConfig, most_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        """A reply may have ``most_bytes``.

        Raises:
            UserError: the key is to be in an environment variable, and is not.
        """
        self.place = place
        self._requests = requests
        self._most_bytes = most_bytes
        self._headers = {"Content-Type": "application/json", **_authorization(place)}
        self._closed = threading.Event()
        self._jitter = random.Random(0)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if urlsplit(place.base_url).hostname in ("localhost", "127.0.0.1", "::1"):
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def post(self, endpoint: str, body: Mapping[str, Any]) -> bytes:
        """What the server replies to a JSON body at ``endpoint`` (``/completions``).

        Raises:
            Down: the server is out of reach, too slow, overloaded or broken.
            Declined: the server does not take this request.
            UserError: the address, the model's name or the key is wrong.
        """
        return self._persist(endpoint, json.dumps(body).encode())

    def get(self, endpoint: str) -> bytes:
        """What the server has at ``endpoint``. Raises as :meth:`post`."""
        return self._persist(endpoint, None)

    def close(self) -> None:
        """Ends the waiting for retries."""
        self._closed.set()

    def _persist(self, endpoint: str, body: bytes | None) -> bytes:
        attempts = 1 + self._requests.retries
        for attempt in range(attempts):
            try:
                return self._send(endpoint, body)
            except _Failed as failure:
                line = str(failure)
                wait = self._requests.backoff * 2**attempt * self._jitter.uniform(0.5, 1.0)
                wait = min(MAX_WAIT_SECONDS, max(wait, failure.wait))
            if attempt + 1 < attempts and self._closed.wait(wait):
                break
        times = f"{attempts} attempts" if attempts > 1 else "1 attempt"
        raise Down(f"{self._who} gave no reply in {times}: {line}")

    @property
    def _who(self) -> str:
        return f"{self.place.whose} at {self.place.base_url}"

    def _send(self, endpoint: str, body: bytes | None) -> bytes:
        deadline = time.monotonic() + self._requests.seconds
        request = urllib.request.Request(
            f"{self.place.base_url}{endpoint}",
            body,
            self._headers,
            method="GET" if body is None else "POST",
        )
        try:
            with self._opener.open(request, timeout=self._requests.seconds) as reply:
                return self._read(reply, deadline)
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
            said = _message(self._read(error, deadline))
        except (_Failed, OSError, http.client.HTTPException):
            said = ""
        status = f"{error.code}{f' ({said})' if said else ''}"
        if error.code in _AGAIN or error.code >= 500:
            return _Failed(f"it replied {status}", _seconds(error.headers.get("Retry-After")))
        where = f"{self.place.field}: {self.place.base_url}"
        if error.code in (401, 403):
            return UserError(
                f"{where} refuses the request: {status}; name the environment variable with its "
                "key in api_key_env"
            )
        if error.code == 404 or 300 <= error.code < 400:
            return UserError(
                f"{where} has no such place or model: {status}; check base_url (it often ends in "
                f"/v1) and model ({self.place.model})"
            )
        return Declined(f"{self._who} does not take it: {status}")

    def _read(self, reply: Any, deadline: float) -> bytes:
        """The body, however slowly it drips."""
        parts: list[bytes] = []
        size = 0
        while part := reply.read1(1 << 16):
            size += len(part)
            parts.append(part)
            if size > self._most_bytes:
                raise _Failed(f"a reply of more than {self._most_bytes >> 20} MiB")
            if time.monotonic() > deadline:
                raise _Failed("a reply that does not end")
        return b"".join(parts)


def _authorization(place: Place) -> Mapping[str, str]:
    if place.api_key_env is None:
        return {}
    where = f"{place.field}.api_key_env"
    key = os.environ.get(place.api_key_env, "").strip()
    if not key:
        raise UserError(
            f"{where}: the environment variable {place.api_key_env} is not set; export it with the "
            "server's key"
        )
    if not key.isascii() or not key.isprintable():
        raise UserError(
            f"{where}: {place.api_key_env} holds characters that no key has; set it again"
        )
    return {"Authorization": f"Bearer {key}"}


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
