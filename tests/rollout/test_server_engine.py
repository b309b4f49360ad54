"""A server as an engine: ``lydite serve`` in this process, and ones that go wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from small_runs import MODEL
from typer.testing import CliRunner

from lydite.cli.main import app
from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.saving import save_policy
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.rollout.serve import ModelServer, Served
from lydite.rollout.server_engine import UNKNOWN, ServerConfig, ServerEngine, first_served
from lydite.types import Message, Problem, Request, SamplingParams, ThinkingBudget

QUICK = {"retries": 1, "backoff": 0.01, "seconds": 20, "concurrency": 4}


@pytest.fixture(scope="module")
def policy():
    return load_policy(validate(ModelConfig, MODEL), seed=3)


@contextmanager
def listening(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def url(policy) -> Iterator[str]:
    server = ModelServer(Served(policy, "small"), "127.0.0.1", 0)
    with listening(server):
        yield server.url


@contextmanager
def fake(answer: Callable[[str, dict[str, Any]], tuple[int, Any]]) -> Iterator[str]:
    """A server that replies what ``answer`` makes of a path and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, reply = answer(self.path.removeprefix("/v1"), body)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with listening(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"


def engine(url: str, policy: Any = None, **changes: Any) -> ServerEngine:
    values = {"base_url": url, "served": "small", "requests": QUICK, **changes}
    return ServerEngine(validate(ServerConfig, values), "MODEL", policy)


def ask(params: SamplingParams, samples: int = 3) -> list[Request]:
    return [Request(f"q{i}", (7 + i, 8, 9), samples, params) for i in range(3)]


def test_greedy_over_http_is_greedy_here(policy, url):
    there = engine(url, policy)
    there.check()
    requests = ask(SamplingParams(12, 0.0, stop=("1", "so")), samples=2)
    ours = LocalEngine(policy, EngineConfig()).generate(requests)
    told: list[int] = []
    heard: list[Any] = []
    theirs = there.stream(
        requests, lambda i, c: heard.append(c), lambda at: told.append(at.finished)
    )
    flat = [[c for group in found for c in group] for found in (ours, theirs)]
    for a, b in zip(*flat, strict=True):
        assert (a.problem_id, a.sample, a.token_ids) == (b.problem_id, b.sample, b.token_ids)
        assert (a.text, a.finish, a.loss_mask) == (b.text, b.finish, b.loss_mask)
    assert len(heard) == 6 and told == [1, 2, 3, 4, 5, 6]


def test_samples_differ_and_come_again(policy, url):
    there = engine(url, policy)
    found = there.generate(ask(SamplingParams(12)))
    assert len({c.token_ids for group in found for c in group}) == 9
    assert [c.sample for c in found[0]] == [0, 1, 2]
    again = there.generate(ask(SamplingParams(12)))
    assert [[c.token_ids for c in g] for g in again] == [[c.token_ids for c in g] for g in found]


def test_a_budget_is_kept_where_the_server_gives_tokens_back(policy, url):
    there = engine(url, policy)
    there.check()
    opened = policy.tokenizer.convert_tokens_to_ids("<think>")
    params = SamplingParams(24, thinking=ThinkingBudget((3,)))
    found = there.generate([Request("q", (7, 8, opened), 6, params)])[0]
    assert any(c.thought and c.thought.cut for c in found)
    assert all(c.thought and c.thought.tokens <= 3 for c in found)


def completions(texts: list[str], **more: Any) -> dict[str, Any]:
    choices = [{"index": i, "text": t, "finish_reason": "stop"} for i, t in enumerate(texts)]
    return {"choices": choices, **more}


def test_a_server_of_the_bare_standard_is_asked_in_its_words(policy):
    seen: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if "return_token_ids" in body:
            return 400, {"error": {"message": "unknown field return_token_ids"}}
        seen.append(body)
        return 200, completions(["123"])  # one, whatever n says

    with fake(answer) as url:
        there = engine(url, policy)
        there.check()
        there.generate(ask(SamplingParams(6, 0.0), samples=2))
        assert not any("n" in body for body in seen), "vLLM refuses it at temperature 0"
        found = there.showing([]).generate(ask(SamplingParams(5, 0.7, top_p=0.9), samples=3))
        budget = SamplingParams(24, thinking=ThinkingBudget((3,)))
        with pytest.raises(UserError, match=r"thinking budget needs a server that takes tokens"):
            there.generate(ask(budget))
    assert [c.sample for c in found[1]] == [0, 1, 2] and found[1][2].text == "123"
    assert len(found[0][0].token_ids) == 3
    sampled = [body for body in seen if body["max_tokens"] == 5]
    assert len({body["seed"] for body in sampled}) == 9
    assert all(body["top_p"] == 0.9 and "top_k" not in body for body in sampled)


def test_by_messages_where_no_tokenizer_is_known():
    seen: list[Any] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        assert path == "/chat/completions" and "prompt" not in body
        seen.append(body["messages"])
        message = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        return 200, {"choices": [choice], "usage": {"completion_tokens": 7}}

    turns = (Message("system", "Be brief."), Message("user", "2+2?"))
    with fake(answer) as url:
        there = engine(url).showing([Problem("q", "2+2?", turns)])
        found = there.generate([Request("q", (UNKNOWN,), 2, SamplingParams(9))])[0]
    assert [c.text for c in found] == ["<think>\n2 and 2\n</think>\n\n4"] * 2
    assert found[0].finish == "length" and found[0].sampled == 7
    assert seen[0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
    ]


@pytest.mark.parametrize(
    ("reply", "line"),
    [
        ((200, b"<html>"), "is no list of completions"),
        ((200, {"choices": []}), "is no list of completions"),
        ((200, [1]), "is no list of completions"),
        ((404, {}), "no such place or model"),
        ((401, {}), "api_key_env"),
        ((400, {"error": {"message": "top_k is not known"}}), "does not take it: 400 .top_k"),
        ((503, {}), "gave no reply in 2 attempts"),
    ],
)
def test_what_goes_wrong_is_one_line(policy, reply, line):
    with fake(lambda path, body: reply) as url:
        there = engine(url, policy)
        with pytest.raises(UserError, match=line) as caught:
            there.generate(ask(SamplingParams(4)))
    assert str(caught.value).startswith("MODEL") and "\n" not in str(caught.value)


def test_what_is_odd_but_can_be_read_is_read(policy):
    odd = {"choices": [None, {"text": None, "finish_reason": 3, "token_ids": ["7"]}], "usage": 7}
    with fake(lambda path, body: (200, odd)) as url:
        found = engine(url, policy).generate(ask(SamplingParams(4), samples=2))
    assert [(c.text, c.token_ids, c.finish) for c in found[0]] == [("", (), "stop")] * 2


def test_one_that_is_slow_or_gone_ends_in_bounded_time(policy):
    with pytest.raises(UserError, match="gave no reply in 2 attempts"):
        engine("http://127.0.0.1:9/v1", policy).check()
    with pytest.raises(UserError, match=r"--served: .* gave no reply"):
        config = {"base_url": "http://127.0.0.1:9/v1", "served": "?", "requests": QUICK}
        first_served(validate(ServerConfig, config), "--served")


@pytest.fixture(scope="module")
def files(policy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval")
    save_policy(policy, folder / "model")
    rows = [{"question": f"add {i}+{i}", "answer": str(2 * i)} for i in range(4)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_lydite_eval_measures_a_server_as_it_measures_the_model(files, url):
    base = ["--tasks", str(files / "sums.jsonl"), "--verifier", "exact", "--max-tokens", "8",
            "-o", str(files / "answers.parquet")]  # fmt: skip
    found = []
    for model in ([str(files / "model")], [url, "--tokenizer", str(files / "model")]):
        result = CliRunner().invoke(app, ["eval", *model, *base])
        assert result.exit_code == 0, result.output
        found.append(result.output)
    assert found[0] == found[1] and "sums" in found[0]


def test_lydite_eval_says_what_a_server_lacks(files, url):
    base = ["--tasks", str(files / "sums.jsonl"), "--max-tokens", "8"]
    result = CliRunner().invoke(app, ["eval", url, *base])
    assert result.exit_code == 2 and "give --tokenizer MODEL" in result.output
    asked = ["--tokenizer", str(files / "model"), "--served", "large"]
    result = CliRunner().invoke(app, ["eval", url, *asked, *base])
    assert result.exit_code == 2 and "no model 'large'" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["eval", "./no", "--served", "large", *base])
    assert result.exit_code == 2 and "go with a server's address" in result.output
