"""Rollout workers in other processes sample what one process does, whoever is lost on the way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import MODEL

from lydite.cluster.config import ClusterConfig
from lydite.cluster.pool import Pool
from lydite.cluster.processes import Calls, Journal, Watch
from lydite.cluster.remote_engine import RemoteEngine
from lydite.cluster.sampling import EngineSpec
from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.rollout.engine import EngineConfig
from lydite.rollout.select import local_engine
from lydite.types import Completion, Request, SamplingParams

pytestmark = [pytest.mark.usefixtures("ray_here"), pytest.mark.xdist_group("ray")]
SETTINGS = {
    "rollout": {"workers": 2, "cpus": 1},
    "timeouts": {"heartbeat": 6, "start": 120, "sampling": 60, "say": 2},
    "heartbeat_every": 1,
}


class Bench:
    """A pool and its engine, with what was said."""

    def __init__(self, folder: Path) -> None:
        self.config: ClusterConfig = validate(ClusterConfig, SETTINGS)
        self.warned: list[tuple[str, str]] = []
        self.log = folder / "cluster.log"
        journal = Journal(folder, lambda *warning: self.warned.append(warning))
        self.watch = Watch(self.config, journal)
        calls = Calls(self.config, self.watch, journal)
        self.model = validate(ModelConfig, MODEL)
        spec = EngineSpec(self.model, EngineConfig(max_rows=4), 5, "cpu")
        self.pool = Pool(self.config, spec, calls, self.watch, journal)
        self.engine = RemoteEngine(self.config, self.pool, calls, journal, self.pool.load)
        self.pool.start()

    def pids(self) -> dict[str, int]:
        return {p.role: p.where.pid for p in self.pool.ready() if p.where is not None}

    def close(self) -> None:
        self.pool.close()
        self.watch.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, ray_here: None) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("logs"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(validate(ModelConfig, MODEL), "cpu", 5)


def requests(tokens: int = 12) -> list[Request]:
    params = SamplingParams(tokens)
    return [
        Request(f"p{i}", (1, 4 + i, 3), 4, params, step=i, first_sample=4 * i) for i in range(6)
    ]


def alike(found: list[list[Completion]], expected: list[list[Completion]]) -> None:
    assert [
        [(c.problem_id, c.sample, c.token_ids, c.text, c.finish) for c in g] for g in found
    ] == [[(c.problem_id, c.sample, c.token_ids, c.text, c.finish) for c in g] for g in expected]
    for group, other in zip(found, expected, strict=True):
        for ours, theirs in zip(group, other, strict=True):
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
            assert ours.versions == theirs.versions


def test_two_workers_sample_what_one_process_does(bench: Bench, policy: Any) -> None:
    heard: list[tuple[int, int]] = []
    found = bench.engine.stream(requests(), lambda i, c: heard.append((i, c.sample)))
    alike(found, local_engine(policy, EngineConfig(), 5).generate(requests()))
    assert sorted(heard) == [(i, 4 * i + s) for i in range(6) for s in range(4)]


def test_a_request_that_cannot_be_is_the_workers_word(bench: Bench) -> None:
    with pytest.raises(UserError, match="max_tokens 200 pass the context of 80"):
        bench.engine.generate([Request("long", (1, 2), 1, SamplingParams(200))])
    assert len(bench.engine.generate(requests()[:1])[0]) == 4
    assert not bench.warned


def test_new_weights_reach_every_worker_and_the_version_is_theirs(
    bench: Bench, policy: Any
) -> None:
    changed = load_policy(validate(ModelConfig, MODEL), "cpu", 9)
    bench.engine.load_weights(changed.model.named_parameters(), 3)
    expected = local_engine(changed, EngineConfig(), 5)
    expected.version = 3
    found = bench.engine.generate(requests())
    alike(found, expected.generate(requests()))
    assert {c.versions for g in found for c in g} == {(3, 3)}
    bench.engine.load_weights(policy.model.named_parameters(), 0)


def test_interrupted_workers_hand_over_what_they_have(bench: Bench, policy: Any) -> None:
    many, heard = requests(60), []

    def hear(request: int, completion: Completion) -> None:
        heard.append(completion)
        bench.engine.interrupt()

    found = [c for group in bench.engine.stream(many, hear) for c in group]
    whole = [c for g in local_engine(policy, EngineConfig(), 5).generate(many) for c in g]
    assert [(c.problem_id, c.sample) for c in found] == [(c.problem_id, c.sample) for c in whole]
    cut = [c for c in found if c.finish == "abort"]
    assert cut and not any(c.finish == "abort" for c in heard)
    for ours, theirs in zip(found, whole, strict=True):
        assert theirs.token_ids[: len(ours.token_ids)] == ours.token_ids
        assert ours in cut or ours.token_ids == theirs.token_ids
    alike(bench.engine.generate(requests()), whole_of(policy, requests()))


def test_an_interruption_ends_the_next_call_where_none_is_under_way(bench: Bench) -> None:
    bench.engine.interrupt()
    found = bench.engine.generate(requests())
    assert {c.finish for group in found for c in group} == {"abort"}
    assert [len(group) for group in found] == [4] * 6
    assert {c.finish for g in bench.engine.generate(requests()) for c in g} <= {"stop", "length"}


def whole_of(policy: Any, asked: list[Request]) -> list[list[Completion]]:
    return local_engine(policy, EngineConfig(), 5).generate(asked)


def lose(bench: Bench, signal_number: int) -> Callable[[int, Completion], None]:
    """What sends a signal to the first worker, once a completion has come."""
    role, pid = sorted(bench.pids().items())[0]
    sent: list[str] = []

    def send(request: int, completion: Completion) -> None:
        if not sent:
            os.kill(pid, signal_number)
            sent.append(role)

    return send


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_what_a_lost_worker_owed_is_asked_of_another(
    number: int, bench: Bench, policy: Any
) -> None:
    before = bench.pids()
    bench.warned.clear()
    many = requests(60)
    found = bench.engine.stream(many, lose(bench, number))
    alike(found, local_engine(policy, EngineConfig(), 5).generate(many))
    assert [code for code, _ in bench.warned] == ["rollout_worker_lost"]
    assert "rollout-0 was lost while sampling" in bench.warned[0][1]
    if number == signal.SIGSTOP:
        said = bench.log.read_text()
        assert "waiting for rollout-0: sampling, " in said and "no sign of life for 6 s" in said
    deadline = time.monotonic() + 60
    while len(bench.pids()) < 2:
        assert time.monotonic() < deadline, "the lost worker is replaced"
        time.sleep(0.1)
    after = bench.pids()
    assert after["rollout-0"] != before["rollout-0"]
    assert after["rollout-1"] == before["rollout-1"]
    assert not running(before["rollout-0"])
    alike(
        bench.engine.generate(requests()),
        local_engine(policy, EngineConfig(), 5).generate(requests()),
    )


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
