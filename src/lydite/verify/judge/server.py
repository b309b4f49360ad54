"""Chat completions of a judge's server."""

from __future__ import annotations

import json
from typing import Any

from lydite.remote import Declined, Place, Server
from lydite.verify.judge.config import JudgeConfig
from lydite.verify.judge.prompt import VERDICT_SCHEMA, Unreadable

ENDPOINT = "/chat/completions"
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "verdict", "strict": True, "schema": VERDICT_SCHEMA},
}


class ChatServer(Server):
    """The server of a judge. Safe to use from any thread."""

    def __init__(self, config: JudgeConfig, name: str) -> None:
        """
        Raises:
            UserError: the key is to be in an environment variable, and is not.
        """
        place = Place(name, "the judge", config.base_url, config.model, config.api_key_env)
        super().__init__(place, config.requests)
        self._config = config
        self._structured = config.requests.structured != "never"

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
            return _content(self.post(ENDPOINT, self._body(messages, structured)))
        except Declined:
            if not structured or self._config.requests.structured == "always":
                raise
        # Some servers know no response_format. It is left out from now on if that was the reason.
        reply = _content(self.post(ENDPOINT, self._body(messages, structured=False)))
        self._structured = False
        return reply

    def _body(self, messages: list[dict[str, str]], structured: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": self._config.requests.max_tokens,
            **({"response_format": _SCHEMA} if structured else {}),
            **self._config.requests.body,
        }
        return {key: value for key, value in body.items() if value is not None}


def _content(body: bytes) -> str:
    """The text of the first choice."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise Unreadable(f"the judge's server sent no chat completion: {body[:80]!r}") from None
    if not isinstance(content, str):
        raise Unreadable("the judge's reply holds no text; requests.max_tokens may be too small")
    return content
