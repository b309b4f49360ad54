"""``lydite serve``: a teacher for another process."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from small_runs import MODEL
from typer.testing import CliRunner

from lydite.cli.main import app
from lydite.config import validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.saving import save_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served") / "model"
    save_policy(load_policy(validate(ModelConfig, MODEL)), place)
    return place


def test_it_serves_the_model_under_its_name_until_it_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request is answered, and then ctrl-C comes."""
    import threading

    from lydite.rollout import serve

    told: list[Any] = []

    def one_request(self: serve.ModelServer) -> None:
        thread = threading.Thread(target=lambda: told.append(ask(self.url)))
        thread.start()
        self.handle_request()
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr(serve.ModelServer, "serve_forever", one_request)
    done = CliRunner().invoke(app, ["serve", str(folder), "--port", "0", "--name", "small"])
    assert done.exit_code == 130
    assert "small on http://127.0.0.1:" in done.output
    assert len(told[0]["choices"][0]["prompt_logprobs"]) == 3


def ask(url: str) -> Any:
    body = {"model": "small", "prompt": [5, 6, 7], "max_tokens": 0, "prompt_logprobs": 0}
    request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.loads(reply.read())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["--device", "tpu"], "give auto, cpu or cuda"),
        (["--host", "256.1.1.1"], "cannot listen on 256.1.1.1"),
    ],
)
def test_mistakes_are_one_line(folder: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["serve", str(folder), *options])
    assert done.exit_code == 2
    assert said in done.output and "Traceback" not in done.output
