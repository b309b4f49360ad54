"""A teacher behind an OpenAI-compatible server: log-probabilities of given tokens by
``/completions``.

Two ways are known of asking for them: ``prompt_logprobs`` (vLLM, ``lydite serve``), whose reply
names every token by its number, and ``echo`` with ``logprobs`` (the completions API of old, which
other servers have), whose reply only counts them. Tokens are sent by number, so nothing is encoded
twice.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from lydite.config import Config, UserError
from lydite.remote import Declined, Down, Place, RequestsConfig, Server, base_address

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = Sequence[int]
Way = Literal["prompt_logprobs", "echo"]
ENDPOINT = "/completions"
BYTES_PER_TOKEN = 1024
"""What a reply may spend on a token: a number, its text and one likelier token, generously."""
BYTES_AT_LEAST = 1 << 20
SAMPLED = 48
"""Tokens of the vocabulary that a trial text is made of."""


class RemoteTeacherConfig(Config):
    """A model behind a server that gives log-probabilities of a prompt, such as vLLM or
    `lydite serve`.
    """

    base_url: str = Field(
        description="Address of the server up to `/completions`, such as `http://localhost:8000/v1`."
    )
    served: str = Field(min_length=1, description="Name of the model there.")
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Environment variable that holds the key of the server, if it wants one.",
    )
    ask: Literal["auto", "prompt_logprobs", "echo"] = Field(
        default="auto",
        description="How log-probabilities are asked for: as vLLM does, or by `echo` and "
        "`logprobs`; `auto` tries both at the start.",
    )
    per_request: int = Field(
        default=8, ge=1, le=256, description="Completions that one request scores."
    )
    requests: RequestsConfig = Field(
        default=RequestsConfig(seconds=600), description="How the server is asked."
    )

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return base_address(value, ENDPOINT)


class RemoteTeacher:
    """Implements :class:`lydite.types.Teacher`. Log-probabilities are at temperature 1, as servers
    give them. Every failure is a ``UserError`` of one line.
    """

    def __init__(self, config: RemoteTeacherConfig, field: str, longest: int) -> None:
        """``field`` is the place of its settings, ``longest`` the most tokens of a prompt with its
        completion.

        Raises:
            UserError: its key is not in the environment.
        """
        self._config = config
        self._field = field
        most = BYTES_AT_LEAST + config.per_request * longest * BYTES_PER_TOKEN
        place = Place(field, "the teacher", config.base_url, config.served, config.api_key_env)
        self._server = Server(place, config.requests, most)
        self._way: Way = "echo" if config.ask == "echo" else "prompt_logprobs"

    def close(self) -> None:
        """Gives up what is under way."""
        self._server.close()

    def check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Asks for a trial text, and finds out how.

        Raises:
            UserError: the server is out of reach, has no such model, gives no log-probabilities of
                a prompt, or counts tokens otherwise than the student.
        """
        try:
            self._check_served()
            trials = trial_texts(tokenizer)
            try:
                self._try(tokenizer, trials)
            except (Declined, _NoLogprobs):
                if self._config.ask != "auto":
                    raise
                self._way = "echo"
                self._try(tokenizer, trials)
        except (Down, Declined) as error:
            raise UserError(f"{self._field}: {error}") from None
        except _NoLogprobs:
            raise UserError(
                f"{self._field}: the teacher at {self._config.base_url} gives no log-probabilities "
                "of a prompt (prompt_logprobs, or echo with logprobs); serve it with vLLM or "
                "`lydite serve`"
            ) from None

    def logprobs(
        self, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]]
    ) -> list[list[list[float]]]:
        """See :class:`lydite.types.Teacher`.

        Raises:
            UserError: the server does not answer, or not with these tokens.
        """
        found: list[list[list[float]]] = [[[] for _ in group] for group in completions]
        places = [(g, i) for g, group in enumerate(completions) for i in range(len(group))]
        places = [(g, i) for g, i in places if completions[g][i]]
        size = self._config.per_request
        parts = [places[start : start + size] for start in range(0, len(places), size)]
        asked = [[[*prompts[g], *completions[g][i]] for g, i in part] for part in parts]
        with ThreadPoolExecutor(self._config.requests.concurrency) as pool:
            futures = [pool.submit(self._score, each) for each in asked]
            try:
                told = [future.result() for future in futures]
            except BaseException as error:
                for future in futures:
                    future.cancel()
                if isinstance(error, Down | Declined):
                    raise UserError(f"{self._field}: {error}") from None
                raise
        for (g, i), row in zip(places, itertools.chain.from_iterable(told), strict=True):
            found[g][i] = row[len(prompts[g]) :]
        return found

    def _score(self, sequences: Sequence[Ids]) -> list[list[float]]:
        """Of every token but the first, which gets 0."""
        try:
            choices = self._ask([list(ids) for ids in sequences])
            return [self._read(choice, ids) for choice, ids in zip(choices, sequences, strict=True)]
        except _NoLogprobs:
            raise UserError(
                f"{self._field}: the teacher at {self._config.base_url} sent no log-probabilities "
                "of some tokens"
            ) from None

    def _ask(self, prompt: list[Any], **more: Any) -> list[Mapping[str, Any]]:
        """The choices of a reply, in the order of the prompts."""
        kind = (
            {"prompt_logprobs": 1}
            if self._way == "prompt_logprobs"
            else {"echo": True, "logprobs": 1}
        )
        body = {"model": self._config.served, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        reply = self._server.post(ENDPOINT, {**body, **kind, **more})
        try:
            choices = json.loads(reply)["choices"]
            ordered: list[Mapping[str, Any]] = sorted(choices, key=lambda c: int(c["index"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            raise UserError(
                f"{self._field}: what {self._config.base_url} sent is no list of completions: "
                f"{reply[:80]!r}"
            ) from None
        if len(ordered) != len(prompt):
            raise _NoLogprobs
        return ordered

    def _read(self, choice: Mapping[str, Any], ids: Ids) -> list[float]:
        """The log-probabilities that a choice gives to these tokens, 0 for the first."""
        if self._way == "echo":
            rows = _list(choice.get("logprobs"), "token_logprobs")
            if not len(ids) <= len(rows) <= len(ids) + 1:
                raise self._other_tokens(len(ids), len(rows)) if len(rows) > 1 else _NoLogprobs()
            return [0.0, *(_number(value) for value in rows[1 : len(ids)])]
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list):
            raise _NoLogprobs
        if len(entries) != len(ids):
            raise self._other_tokens(len(ids), len(entries))
        found = [0.0]
        for token, entry in zip(ids[1:], entries[1:], strict=True):
            if not isinstance(entry, dict):
                raise _NoLogprobs
            if str(token) not in entry:
                raise self._other_tokens(token, next(iter(entry), "none"))
            told = entry[str(token)]
            found.append(_number(told.get("logprob") if isinstance(told, dict) else told))
        return found

    def _other_tokens(self, ours: int, theirs: object) -> UserError:
        return UserError(
            f"{self._field}: the teacher at {self._config.base_url} reads other tokens than the "
            f"student ({ours} here, {theirs} there); on-policy distillation needs the same "
            "vocabulary"
        )

    def _check_served(self) -> None:
        """Whether the model is among those that the server lists, if it lists any."""
        try:
            listed = [str(each["id"]) for each in json.loads(self._server.get("/models"))["data"]]
        except (Declined, UserError, ValueError, LookupError, TypeError, RecursionError):
            return  # Not every server has a list; what is wrong shows at the first completion.
        if listed and self._config.served not in listed:
            raise UserError(
                f"{self._field}.served: {self._config.base_url} has no model "
                f"{self._config.served!r}; it serves {', '.join(listed[:5])}"
            )

    def _try(self, tokenizer: PreTrainedTokenizerBase, trials: Sequence[str]) -> None:
        """By text, so that it is the server that encodes; then by number."""
        for text in trials:
            plain, whole = (
                list(tokenizer(text, add_special_tokens=special)["input_ids"])
                for special in (False, True)
            )
            (choice,) = self._ask([text], add_special_tokens=False)
            try:
                self._read(choice, plain)
            except UserError:
                if plain == whole:
                    raise
                self._read(choice, whole)  # A server that does not know the setting.
            self._read(self._ask([plain])[0], plain)


def trial_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Texts on which tokenizers of other vocabularies part: pieces from all over this one's, and
    digits, signs and accents.
    """
    special = set(tokenizer.all_special_ids)
    plain = [i for i in range(len(tokenizer)) if i not in special]
    some = plain[:: max(1, len(plain) // SAMPLED)][:SAMPLED]
    pieces = "".join(str(tokenizer.decode([i])) for i in some)
    texts = [pieces.replace("\ufffd", ""), "1 + 23 = 24; naïve — 知识 x² \\frac{1}{2}"]
    return [text for text in texts if len(tokenizer(text, add_special_tokens=False).input_ids) > 1]


class _NoLogprobs(Exception):
    """A reply without log-probabilities of the prompt."""


def _list(record: object, name: str) -> list[Any]:
    values = record.get(name) if isinstance(record, dict) else None
    if not isinstance(values, list):
        raise _NoLogprobs
    return values


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise _NoLogprobs
    return float(value)
