"""A small OpenAI-compatible server for one model: what a teacher, a test or a script needs of it.

``GET /v1/models``, and ``POST /v1/completions`` with text or token numbers, generation by the
in-process engine, and log-probabilities of the prompt both by ``echo`` with ``logprobs`` and by
vLLM's ``prompt_logprobs`` (of the prompt's own tokens only, however many are asked for). One
request at a time goes through the model. It is no vLLM: it does not batch across requests.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import Field, field_validator

from lydite.config import Config, UserError, validate
from lydite.model.policy import Policy
from lydite.rollout.select import local_engine
from lydite.rollout.teacher import LocalTeacher
from lydite.types import Completion, Request, SamplingParams

MOST_BYTES = 16 << 20
MOST_SEQUENCES = 256
MOST_CONNECTIONS = 64
IDLE_SECONDS = 60.0
"""What a client may take between two pieces of its request."""


class CompletionBody(Config):
    """A request for completions, as far as it is served; what else it says is passed over."""

    model: str | None = Field(default=None, description="The name that is served.")
    prompt: list[str | list[int]] = Field(
        min_length=1, max_length=MOST_SEQUENCES, description="Texts, or token numbers."
    )
    max_tokens: int = Field(default=16, ge=0, description="Tokens to generate.")
    temperature: float = Field(default=1.0, ge=0, le=100, description="0 is greedy.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus.")
    top_k: int = Field(default=0, ge=-1, description="Likeliest tokens; 0 and -1: all.")
    min_p: float = Field(default=0.0, ge=0, lt=1, description="Share of the likeliest.")
    n: int = Field(default=1, ge=1, le=MOST_SEQUENCES, description="Completions a prompt.")
    stop: list[str] = Field(default=[], max_length=16, description="Texts that end one.")
    seed: int | None = Field(default=None, description="Addresses the noise.")
    echo: bool = Field(default=False, description="Prompt before the completion.")
    logprobs: int | None = Field(default=None, ge=0, description="Log-probabilities of tokens.")
    prompt_logprobs: int | None = Field(default=None, ge=-1, description="Those of the prompt.")
    return_token_ids: bool = Field(default=False, description="Numbers of sampled tokens.")
    add_special_tokens: bool = Field(default=True, description="Of the tokenizer, to a text.")
    stream: bool = Field(default=False, description="Not served.")

    @field_validator("prompt", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        """One text, one list of numbers, or several of either."""
        one = isinstance(given, str) or (
            isinstance(given, list) and bool(given) and all(isinstance(x, int) for x in given)
        )
        return [given] if one else given

    @field_validator("stop", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return [] if given is None else [given] if isinstance(given, str) else given

    @field_validator("stream")
    @classmethod
    def _whole(cls, given: bool) -> bool:
        if given:
            raise ValueError("replies are sent whole; leave it out")
        return given


@dataclass(frozen=True, slots=True)
class _Scored:
    """One prompt, a completion of it if one was asked for, and the prompt's log-probabilities."""

    ids: list[int]
    logprobs: list[float] | None
    completion: Completion | None


class Served:
    """A model under a name, and what it replies."""

    def __init__(self, policy: Policy, name: str) -> None:
        self.name = name
        self._policy = policy
        self._engine = local_engine(policy)
        self._teacher = LocalTeacher(policy)
        self._lock = threading.Lock()

    def models(self) -> dict[str, Any]:
        """The list of ``/v1/models``."""
        card = {"id": self.name, "object": "model", "owned_by": "lydite",
                "max_model_len": self._policy.context}  # fmt: skip
        return {"object": "list", "data": [card]}

    def complete(self, values: Any) -> dict[str, Any]:
        """The reply to a request for completions.

        Raises:
            UserError: it asks for what cannot be.
        """
        if not isinstance(values, dict):
            raise UserError("the body is no JSON object")
        known = {k: v for k, v in values.items() if k in CompletionBody.model_fields}
        body = validate(CompletionBody, {k: v for k, v in known.items() if v is not None})
        if body.model not in (None, self.name):
            raise UnknownModelError(f"model: no model {body.model!r}; {self.name!r} is served")
        prompts = [self._ids(prompt, body) for prompt in body.prompt]
        if len(prompts) * body.n > MOST_SEQUENCES:
            raise UserError(f"n: at most {MOST_SEQUENCES} completions in one request")
        with self._lock:
            found = self._run(prompts, body)
        choices = [self._choice(index, each, body) for index, each in enumerate(found)]
        made = sum(len(each.completion.token_ids) for each in found if each.completion)
        read = sum(map(len, prompts))
        return {
            "id": f"cmpl-{secrets.token_hex(8)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.name,
            "choices": choices,
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": made,
                "total_tokens": read + made,
            },
        }

    def _ids(self, prompt: str | list[int], body: CompletionBody) -> list[int]:
        if isinstance(prompt, str):
            encoded = self._policy.tokenizer(prompt, add_special_tokens=body.add_special_tokens)
            ids = list(encoded["input_ids"])
        else:
            ids = prompt
        rows = self._policy.head[0].shape[0]
        if not ids:
            raise UserError("prompt: it has no tokens")
        if not all(0 <= i < rows for i in ids):
            raise UserError(f"prompt: token numbers go from 0 to {rows - 1}")
        if len(ids) + body.max_tokens > self._policy.context:
            raise UserError(
                f"prompt: {len(ids)} tokens and max_tokens {body.max_tokens} pass the context of "
                f"{self._policy.context}"
            )
        return ids

    def _run(self, prompts: Sequence[list[int]], body: CompletionBody) -> list[_Scored]:
        """Prompts in order, the completions of each in order."""
        told: list[list[float] | None] = [None] * len(prompts)
        if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
            rows = self._teacher.logprobs(
                [ids[:1] for ids in prompts], [[ids[1:]] for ids in prompts]
            )
            told = [row[0] for row in rows]
        if body.max_tokens == 0:
            return [_Scored(*each, None) for each in zip(prompts, told, strict=True)]
        params = SamplingParams(
            body.max_tokens,
            body.temperature,
            body.top_p,
            max(0, body.top_k),
            body.min_p,
            tuple(body.stop),
        )
        step = secrets.randbits(31) if body.seed is None else body.seed
        requests = [
            Request(str(place), tuple(ids), body.n, params, step)
            for place, ids in enumerate(prompts)
        ]
        made = self._engine.generate(requests)
        return [
            _Scored(ids, row, completion)
            for ids, row, group in zip(prompts, told, made, strict=True)
            for completion in group
        ]

    def _choice(self, index: int, found: _Scored, body: CompletionBody) -> dict[str, Any]:
        decode, completion = self._policy.tokenizer.decode, found.completion
        choice: dict[str, Any] = {
            "index": index,
            "text": (str(decode(found.ids)) if body.echo else "")
            + (completion.text if completion else ""),
            "finish_reason": completion.finish if completion else "length",
            "logprobs": None,
        }
        if body.return_token_ids and completion is not None:
            choice["token_ids"] = list(completion.token_ids)
        if body.logprobs is not None:
            rows: list[tuple[int, float | None]] = []
            if body.echo and found.logprobs is not None:
                rows += zip(found.ids, [None, *found.logprobs], strict=True)
            if completion is not None:
                rows += zip(completion.token_ids, completion.logprobs, strict=True)
            choice["logprobs"] = {
                "tokens": [str(decode([i])) for i, _ in rows],
                "token_logprobs": [value for _, value in rows],
                "top_logprobs": None,
                "text_offset": [],
            }
        if body.prompt_logprobs is not None and found.logprobs is not None:
            choice["prompt_logprobs"] = [
                None,
                *(
                    {str(i): {"logprob": value, "decoded_token": str(decode([i]))}}
                    for i, value in zip(found.ids[1:], found.logprobs, strict=True)
                ),
            ]
        return choice


class UnknownModelError(UserError):
    """A request for a model that is not served."""


class ModelServer(ThreadingHTTPServer):
    """Serves a model on ``host`` and ``port`` (0: any that is free) until :meth:`shutdown`."""

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, served: Served, host: str, port: int, key: str | None = None) -> None:
        """With a ``key`` every request must bring it.

        Raises:
            UserError: the place is taken or is none.
        """
        self.served = served
        self.key = key
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(f"port: cannot listen on {host}:{port}: {error}") from error

    @property
    def url(self) -> str:
        """The address up to the endpoint."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    def handle_error(self, *_: Any) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, *_: Any) -> None:
        """Nothing: prompts are nobody's business."""

    def _answer(self, act: Any) -> None:
        """A reply whatever happens; what cannot be is one line with a status."""
        if not self.server.places.acquire(blocking=False):
            return self._refuse(503, "too many requests are under way", {"Retry-After": "1"})
        try:
            if not self._known():
                return self._refuse(401, "the key is missing or wrong")
            self._send(200, act())
        except _Refused as refused:
            self._refuse(refused.status, str(refused))
        except UnknownModelError as error:
            self._refuse(404, str(error))
        except UserError as error:
            self._refuse(400, str(error))
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            self._refuse(500, type(error).__name__)
        finally:
            self.server.places.release()

    def _known(self) -> bool:
        if self.server.key is None:
            return True
        given = self.headers.get("Authorization", "").encode()
        return hmac.compare_digest(given, f"Bearer {self.server.key}".encode())

    def _get(self) -> dict[str, Any]:
        if self.path.rstrip("/") == "/v1/models":
            return self.server.served.models()
        if self.path == "/health":
            return {"status": "ok"}
        raise _Refused(404, f"nothing at {self.path[:80]}")

    def _post(self) -> dict[str, Any]:
        if self.path.rstrip("/") != "/v1/completions":
            raise _Refused(404, f"nothing at {self.path[:80]}")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise _Refused(411, "Content-Length is missing")
        if int(length) > MOST_BYTES:
            raise _Refused(413, f"a body of more than {MOST_BYTES >> 20} MiB")
        body = self.rfile.read(int(length))
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise _Refused(400, "the body is no JSON") from None
        return self.server.served.complete(values)

    def _refuse(self, status: int, line: str, headers: dict[str, str] | None = None) -> None:
        # What is left of a body that was not read would be taken for the next request.
        self.close_connection = True
        error = {"message": line, "type": "invalid_request_error", "code": status}
        self._send(status, {"error": error}, {"Connection": "close", **(headers or {})})

    def _send(self, status: int, values: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(values).encode()
        self.send_response(status)
        fields = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        for name, value in {**fields, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class _Refused(Exception):
    """A request that is not served. One line, with its status."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status
