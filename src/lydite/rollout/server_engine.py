"""An OpenAI-compatible server as an engine: for evaluation, where text and endings count.

By tokens (``/completions``), where the model's tokenizer is known: the prompt is rendered here, as
for every engine, and sent by number. By messages (``/chat/completions``), where it is not: the
server renders, and all that is known of an answer is its text and how many tokens it took.

Log-probabilities are NaN: a server's are of its own temperature and truncation, and nothing that is
measured needs them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from lydite.config import Config, UserError
from lydite.ops.sampling import address_key
from lydite.remote import Declined, Down, Place, RequestsConfig, Server, base_address
from lydite.rollout.budget_calls import generate_within
from lydite.rollout.engine import OnProgress, Progress, check_requests
from lydite.rollout.stopping import text_of
from lydite.types import Completion, FinishReason, Message, OnCompletion, Problem, Request

if TYPE_CHECKING:
    from lydite.model.policy import Policy

BY_TOKENS, BY_MESSAGES = "/completions", "/chat/completions"
UNKNOWN = -1
"""The number of a token of which only is known that it was there."""
_VLLM = {
    "return_token_ids": True,
    "skip_special_tokens": False,
    "include_stop_str_in_output": True,
}
"""What vLLM and ``lydite serve`` know beyond the standard; others may refuse it."""
_MOST_BYTES = 64 << 20


class ServerConfig(Config):
    """A model behind an OpenAI-compatible server, such as vLLM's."""

    base_url: str = Field(
        description="Address of the server up to the endpoint, such as `http://localhost:8000/v1`."
    )
    served: str = Field(min_length=1, description="Name of the model there.")
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Environment variable that holds the key of the server, if it wants one.",
    )
    requests: RequestsConfig = Field(
        default=RequestsConfig(seconds=600), description="How the server is asked."
    )

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return base_address(base_address(value, BY_MESSAGES), BY_TOKENS)


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of one request that are asked for in one call."""

    index: int
    request: Request
    first: int
    count: int
    seed: int


class ServerEngine:
    """Implements :class:`lydite.types.StreamingEngine`. Every failure is a ``UserError`` of one
    line; the server's noise is its own, addressed by a seed where it takes one.
    """

    version = 0

    def __init__(
        self, config: ServerConfig, field: str, policy: Policy | None = None, seed: int = 0
    ) -> None:
        """``field`` is the place of its settings. ``policy`` renders and decodes, and needs no
        weights; without one the server is asked by messages: see :meth:`showing`.

        Raises:
            UserError: its key is not in the environment.
        """
        self._config = config
        self._field = field
        self._policy = policy
        self._seed = seed
        self._known = _VLLM if policy is not None else {}
        self._messages: Mapping[str, Sequence[Message]] = {}
        place = Place(field, "the server", config.base_url, config.served, config.api_key_env)
        self._server = Server(place, config.requests, _MOST_BYTES)

    def showing(self, problems: Sequence[Problem]) -> ServerEngine:
        """The same server, asked by the messages of these problems."""
        other = ServerEngine(self._config, self._field, self._policy, self._seed)
        other._known = self._known
        other._messages = {problem.id: problem.messages for problem in problems}
        return other

    def check(self) -> None:
        """Asks for one token, and finds out how.

        Raises:
            UserError: the server is out of reach, has no such model, or no endpoint that serves.
        """
        body = {"model": self._config.served, "max_tokens": 1, "temperature": 0}
        if self._policy is None:
            hello = [{"role": "user", "content": "Hello"}]
            try:
                self._choices(BY_MESSAGES, {**body, "messages": hello})
            except UserError as error:
                raise UserError(
                    f"{error}; a server without {BY_MESSAGES} is asked by tokens: give "
                    "--tokenizer MODEL"
                ) from None
            return
        token = next(iter(sorted(self._policy.stop_ids)), 0)
        body["prompt"] = [token]
        try:
            self._server.post(BY_TOKENS, {**body, **_VLLM})
        except Declined:
            self._known = {}
        except Down as error:
            raise UserError(f"{self._field}: {error}") from None
        choices, _ = self._choices(BY_TOKENS, {**body, **self._known})
        if _token_ids(choices[0]) is None:
            self._known = {}

    def generate(
        self, requests: Sequence[Request], on_progress: OnProgress | None = None
    ) -> list[list[Completion]]:
        """See :meth:`stream`."""
        return self.stream(requests, None, on_progress)

    def stream(
        self,
        requests: Sequence[Request],
        on_completion: OnCompletion | None,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """The completions of each request, in request and sample order.

        Raises:
            UserError: the server does not answer, or not these requests; a thinking budget, where
                it does not say which tokens it sampled.
        """
        check_requests(requests, 1 << 62 if self._policy is None else self._policy.context)
        hear = on_completion or (lambda index, completion: None)
        if all(request.params.thinking is None for request in requests):
            return self._stream(requests, hear, on_progress)
        if self._policy is None or not self._known:
            raise UserError(
                f"{self._field}: a thinking budget needs a server that takes tokens and gives them "
                "back (vLLM, lydite serve), and --tokenizer; leave the budget out"
            )
        found = generate_within(_Plainly(self), requests, self._policy.tokenizer, self._seed)
        for index, group in enumerate(found):
            for completion in group:
                hear(index, completion)
        return found

    def plainly(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """Completions of requests without budgets, checked already."""
        return self._stream(requests, lambda index, completion: None, None)

    def close(self) -> None:
        """Gives up what is under way."""
        self._server.close()

    def _stream(
        self, requests: Sequence[Request], hear: OnCompletion, on_progress: OnProgress | None
    ) -> list[list[Completion]]:
        found: list[list[Completion]] = [[] for _ in requests]
        total, tokens = sum(request.samples for request in requests), 0
        with ThreadPoolExecutor(self._config.requests.concurrency) as pool:
            futures = {pool.submit(self._ask, part): part for part in self._parts(requests)}
            try:
                for future in as_completed(futures):
                    index = futures[future].index
                    for completion in future.result():
                        found[index].append(completion)
                        tokens += len(completion.token_ids)
                        hear(index, completion)
                    if on_progress is not None:
                        on_progress(Progress(sum(map(len, found)), total, tokens))
            except BaseException:
                self.close()
                for future in futures:
                    future.cancel()
                raise
        return [sorted(each, key=lambda completion: completion.sample) for each in found]

    def _parts(self, requests: Sequence[Request]) -> Iterator[_Part]:
        """By tokens all samples in one call. One each by messages, for their lengths are told only
        in sum, and at temperature 0, where vLLM refuses several.
        """
        for index, request in enumerate(requests):
            alone = self._policy is None or request.params.temperature == 0
            size = 1 if alone else request.samples
            last = request.first_sample + request.samples
            for first in range(request.first_sample, last, size):
                key = address_key(
                    self._seed, request.problem_id, first, request.step, request.position
                )
                yield _Part(index, request, first, size, key % 2**31)

    def _ask(self, part: _Part) -> list[Completion]:
        """As often as it takes: some servers make one completion, however many are asked for."""
        made: list[Completion] = []
        while len(made) < part.count:
            left = replace(part, count=part.count - len(made), seed=part.seed + len(made))
            choices, used = self._choices(*self._body(left))
            for choice in choices[: left.count]:
                made.append(self._completion(part, part.first + len(made), choice, used))
        return made

    def _body(self, part: _Part) -> tuple[str, dict[str, Any]]:
        request, params = part.request, part.request.params
        body: dict[str, Any] = {
            "model": self._config.served,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": part.seed,
            **({"n": part.count} if part.count > 1 else {}),
            **({"stop": list(params.stop)} if params.stop else {}),
            **({"top_k": params.top_k} if params.top_k else {}),
            **({"min_p": params.min_p} if params.min_p else {}),
        }
        if self._policy is not None:
            return BY_TOKENS, {**body, "prompt": list(request.prompt_ids), **self._known}
        shown = self._messages[request.problem_id]
        messages = [{"role": message.role, "content": message.content} for message in shown]
        return BY_MESSAGES, {**body, "messages": messages}

    def _choices(
        self, endpoint: str, body: Mapping[str, Any]
    ) -> tuple[list[Mapping[str, Any]], int]:
        """The choices of a reply, and how many tokens it says it made.

        Raises:
            UserError: there are none.
        """
        try:
            reply = self._server.post(endpoint, body)
        except (Down, Declined) as error:
            raise UserError(f"{self._field}: {error}") from None
        try:
            record = json.loads(reply)
            choices: list[Mapping[str, Any]] = [c for c in record["choices"] if isinstance(c, dict)]
            usage = record.get("usage")
            used = usage.get("completion_tokens") if isinstance(usage, dict) else None
            if not choices:
                raise ValueError
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UserError(
                f"{self._field}: what {self._config.base_url} sent is no list of completions: "
                f"{reply[:80]!r}"
            ) from None
        return choices, used if isinstance(used, int) and 0 <= used < 1 << 24 else 0

    def _completion(
        self, part: _Part, sample: int, choice: Mapping[str, Any], used: int
    ) -> Completion:
        finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
        ids, text = _token_ids(choice), _text(choice)
        if self._policy is None:
            ids = (UNKNOWN,) * used
        else:
            tokenizer = self._policy.tokenizer
            if ids is None:
                ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
            elif finish == "stop" and ids[-1:] and ids[-1] in self._policy.stop_ids:
                text = text_of(tokenizer, ids[:-1])
            else:
                text = text_of(tokenizer, ids)
        return Completion(
            problem_id=part.request.problem_id,
            sample=sample,
            prompt_ids=part.request.prompt_ids,
            token_ids=ids,
            logprobs=(math.nan,) * len(ids),
            loss_mask=(1,) * len(ids),
            finish=finish,
            text=text,
        )


def first_served(config: ServerConfig, field: str) -> str:
    """The first model that a server lists.

    Raises:
        UserError: it lists none, or is out of reach.
    """
    place = Place(field, "the server", config.base_url, config.served, config.api_key_env)
    try:
        record = json.loads(Server(place, config.requests).get("/models"))
        return str(record["data"][0]["id"])
    except Down as error:
        raise UserError(f"{field}: {error}") from None
    except (Declined, UserError, ValueError, LookupError, TypeError, RecursionError):
        raise UserError(
            f"{field}: {config.base_url} does not list its models; name the one to ask"
        ) from None


class _Plainly:
    """The engine as :func:`generate_within` wants one: never shown a budget."""

    version = 0

    def __init__(self, engine: ServerEngine) -> None:
        self.generate: Callable[[Sequence[Request]], list[list[Completion]]] = engine.plainly


def _text(choice: Mapping[str, Any]) -> str:
    """What a choice says, a thought that the server took out of it put back before it."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return str(choice.get("text") or "")
    said = str(message.get("content") or "")
    thought = message.get("reasoning_content") or message.get("reasoning")
    return f"<think>\n{thought}\n</think>\n\n{said}" if isinstance(thought, str) else said


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        return None
    return tuple(ids)
