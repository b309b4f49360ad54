"""A teacher over HTTP, through ``lydite serve``'s own server and through ones that go wrong."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from small_runs import MODEL, VOCABULARY

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.rollout.remote_teacher import RemoteTeacher, RemoteTeacherConfig, trial_texts
from lydite.rollout.serve import MOST_BYTES, ModelServer, Served
from lydite.rollout.teacher import LocalTeacher

PROMPTS = [[5, 9, 11], [7, 8]]
COMPLETIONS = [[[12, 13, 2], [14], []], [[9] * 20, [15, 6]]]
QUICK = {"retries": 1, "backoff": 0.01, "seconds": 20}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(validate(ModelConfig, MODEL), seed=3)


@contextmanager
def running(policy: Policy, key: str | None = None) -> Iterator[ModelServer]:
    with ModelServer(Served(policy, "teacher"), "127.0.0.1", 0, key) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(policy: Policy) -> Iterator[ModelServer]:
    with running(policy) as found:
        yield found


def teacher(url: str, **changes: Any) -> RemoteTeacher:
    values = {"base_url": url, "served": "teacher", "requests": QUICK, **changes}
    return RemoteTeacher(validate(RemoteTeacherConfig, values), "stages.d.teacher", 80)


@pytest.mark.parametrize("ask", ["prompt_logprobs", "echo", "auto"])
@pytest.mark.parametrize("per_request", [1, 3, 8])
def test_over_http_it_says_what_it_says_here(
    server: ModelServer, policy: Policy, ask: str, per_request: int
) -> None:
    remote = teacher(server.url, ask=ask, per_request=per_request)
    remote.check(policy.tokenizer)
    told = remote.logprobs(PROMPTS, COMPLETIONS)
    here = LocalTeacher(policy).logprobs(PROMPTS, COMPLETIONS)
    assert [[len(row) for row in group] for group in told] == [[3, 1, 0], [20, 2]]
    for group, other in zip(told, here, strict=True):
        for row, wanted in zip(group, other, strict=True):
            assert row == pytest.approx(wanted, abs=1e-5)


Act = Callable[[str, dict[str, Any]], tuple[int, Any]]


@contextmanager
def acting(act: Act) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers by ``act(path, body)``; its address, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({**body, "key": self.headers.get("Authorization")})
            self.reply(body)

        def reply(self, body: dict[str, Any]) -> None:
            status, values = act(self.path, body)
            data = json.dumps(values).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def vllm_like(policy: Policy) -> Act:
    """Replies in vLLM's form: a likelier token beside the prompt's own, no list of models."""
    served = Served(policy, "teacher")

    def act(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.endswith("/models"):
            return 404, {"error": {"message": "no"}}
        reply = served.complete(body)
        for choice in reply["choices"]:
            for entry in choice["prompt_logprobs"][1:]:
                entry["3"] = entry.get("3", {"logprob": -0.1})
        return 200, reply

    return act


def test_the_prompts_own_token_is_read_among_others(policy: Policy) -> None:
    with acting(vllm_like(policy)) as (url, asked):
        remote = teacher(url)
        remote.check(policy.tokenizer)
        told = remote.logprobs(PROMPTS, COMPLETIONS)
    here = LocalTeacher(policy).logprobs(PROMPTS, COMPLETIONS)
    assert told[1][0] == pytest.approx(here[1][0], abs=1e-5)
    assert asked[-1]["prompt_logprobs"] == 1 and "echo" not in asked[-1]


def test_a_server_without_prompt_logprobs_is_asked_to_echo(policy: Policy) -> None:
    served = Served(policy, "teacher")

    def act(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if "prompt_logprobs" in body:
            return 400, {"error": {"message": "unknown field"}}
        return 200, served.models() if path.endswith("/models") else served.complete(body)

    with acting(act) as (url, asked):
        remote = teacher(url)
        remote.check(policy.tokenizer)
        assert remote.logprobs([[5, 9]], [[[12]]])[0][0]
    assert asked[-1]["echo"] is True


def test_unreachable_is_one_line(policy: Policy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    with pytest.raises(
        UserError, match=r"stages.d.teacher: the teacher at .* 2 attempts: .*efused"
    ):
        teacher(url).check(policy.tokenizer)


def test_another_model_is_one_line(server: ModelServer, policy: Policy) -> None:
    with pytest.raises(UserError, match=r"served: .* has no model 'x'; it serves teacher"):
        teacher(server.url, served="x").check(policy.tokenizer)


@pytest.mark.parametrize("logprobs", [None, {"token_logprobs": [-1.0], "tokens": ["a"]}])
def test_no_logprobs_are_one_line(policy: Policy, logprobs: Any) -> None:
    def act(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        choices = [{"index": 0, "text": "a", "logprobs": logprobs}]
        return 200, {"choices": choices}

    with acting(act) as (url, _), pytest.raises(UserError, match="gives no log-probabilities of a"):
        teacher(url).check(policy.tokenizer)


@pytest.mark.parametrize(
    "reply", [{}, {"choices": 3}, {"choices": [1]}, [], "x", {"choices": [{"index": "a"}]}]
)
def test_nonsense_is_one_line(policy: Policy, reply: Any) -> None:
    with acting(lambda *_: (200, reply)) as (url, _), pytest.raises(UserError) as caught:
        teacher(url).check(policy.tokenizer)
    assert "no list of completions" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("ask", ["prompt_logprobs", "echo"])
def test_another_vocabulary_is_one_line(server: ModelServer, ask: str) -> None:
    """Numbers tell tokens apart that are only ordered otherwise; counts tell others."""
    words = VOCABULARY[::-1] if ask == "prompt_logprobs" else [*VOCABULARY, "0123456789", "ABCDEF"]
    student = load_policy(validate(ModelConfig, {**MODEL, "vocabulary": words}))
    with pytest.raises(UserError, match="reads other tokens than the student"):
        teacher(server.url, ask=ask).check(student.tokenizer)


def test_a_server_that_stops_giving_logprobs_is_one_line(policy: Policy) -> None:
    act = vllm_like(policy)

    def fading(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, reply = act(path, body)
        if isinstance(body.get("prompt"), list) and len(body["prompt"]) > 1:
            reply["choices"][1]["prompt_logprobs"][-1] = None
        return status, reply

    with acting(fading) as (url, _):
        remote = teacher(url)
        remote.check(policy.tokenizer)
        with pytest.raises(UserError, match="no log-probabilities of some tokens"):
            remote.logprobs(PROMPTS, COMPLETIONS)


def test_a_busy_server_is_asked_again(policy: Policy) -> None:
    act, seen = vllm_like(policy), [0]

    def busy(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        seen[0] += 1
        return (503, {}) if seen[0] % 2 else act(path, body)

    with acting(busy) as (url, _):
        told = teacher(url, requests={**QUICK, "retries": 2, "concurrency": 1}).logprobs(
            PROMPTS, COMPLETIONS
        )
    assert len(told[1][0]) == 20


def test_the_key_is_sent_and_not_shown(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "hush-hush")
    with running(policy, key="hush-hush") as server:
        teacher(server.url, api_key_env="TEACHER_KEY").check(policy.tokenizer)
        monkeypatch.setenv("TEACHER_KEY", "another")
        with pytest.raises(UserError, match="refuses the request: 401") as caught:
            teacher(server.url, api_key_env="TEACHER_KEY").check(policy.tokenizer)
        assert "another" not in str(caught.value) and "hush" not in str(caught.value)
    monkeypatch.delenv("TEACHER_KEY")
    with pytest.raises(UserError, match="TEACHER_KEY is not set"):
        teacher("http://localhost:1/v1", api_key_env="TEACHER_KEY")


def test_trial_texts_come_from_all_over_the_vocabulary(policy: Policy) -> None:
    first = trial_texts(policy.tokenizer)[0]
    assert set(policy.tokenizer(first, add_special_tokens=False).input_ids) >= {11, 20, 30}


def call(server: ModelServer, body: Any, path: str = "/completions") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_it_generates_from_text_and_from_numbers(server: ModelServer, policy: Policy) -> None:
    text = "add 1+2="
    ids = policy.tokenizer(text, add_special_tokens=False).input_ids
    body = {"model": "teacher", "max_tokens": 4, "temperature": 0, "n": 2, "logprobs": 1}
    status, by_text = call(server, {**body, "prompt": text, "add_special_tokens": False})
    assert status == 200 and [c["index"] for c in by_text["choices"]] == [0, 1]
    _, by_ids = call(server, {**body, "prompt": [ids]})
    assert [c["text"] for c in by_ids["choices"]] == [c["text"] for c in by_text["choices"]]
    logprobs = by_ids["choices"][0]["logprobs"]["token_logprobs"]
    assert 1 <= len(logprobs) <= 4 and all(value <= 0 for value in logprobs)
    assert by_ids["usage"]["prompt_tokens"] == len(ids)


def test_a_seed_makes_samples_repeat(server: ModelServer) -> None:
    body = {"prompt": [5, 9, 11], "max_tokens": 8, "n": 3, "temperature": 2.0, "seed": 4}
    first, second = (call(server, body)[1]["choices"] for _ in range(2))
    other = call(server, {**body, "seed": 5})[1]["choices"]
    assert first == second != other
    assert len({choice["text"] for choice in first}) > 1


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prompt": "x", "model": "other"}, 404, "no model 'other'"),
        ({"prompt": [5] * 79}, 400, "pass the context of 80"),
        ({"prompt": [[5], [-1]]}, 400, "token numbers go from 0 to"),
        ({"prompt": [999]}, 400, "token numbers go from 0 to"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [[]]}, 400, "no tokens"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({}, 400, "prompt: required"),
        ({"prompt": "x", "n": 100000}, 400, "n"),
        ({"prompt": "x", "temperature": -1}, 400, "temperature"),
        ({"prompt": "x", "stream": True}, 400, "stream"),
        ([1, 2], 400, "no JSON object"),
        (b"{", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
    ],
)
def test_what_is_not_served_is_one_line(
    server: ModelServer, body: Any, status: int, said: str
) -> None:
    found, reply = call(server, body)
    assert found == status and said in reply["error"]["message"]
    assert "\n" not in reply["error"]["message"]


def test_a_body_that_is_too_long_is_not_read(server: ModelServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=20) as client:
        client.sendall(
            f"POST /v1/completions HTTP/1.1\r\nContent-Length: {MOST_BYTES + 1}\r\n\r\n".encode()
        )
        assert client.recv(100).startswith(b"HTTP/1.1 413")


def test_nothing_lies_elsewhere(server: ModelServer) -> None:
    assert call(server, {"prompt": "x"}, "/chat/completions")[0] == 404
    with urllib.request.urlopen(server.url + "/models", timeout=20) as reply:
        (card,) = json.loads(reply.read())["data"]
    assert card["id"] == "teacher" and card["max_model_len"] == 80


def test_a_port_that_is_taken_is_one_line(server: ModelServer, policy: Policy) -> None:
    with pytest.raises(UserError, match=r"port: cannot listen on 127\.0\.0\.1"):
        ModelServer(server.served, "127.0.0.1", int(server.server_address[1]))
