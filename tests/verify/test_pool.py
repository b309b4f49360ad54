"""Workers are killed when an item goes wrong; nothing else is lost with it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lydite.config import UserError
from lydite.verify.pool import Handler, Item, Pool


def doubler(setup: object) -> Callable[[Any], Any]:
    """A handler that does what its payload says."""

    def act(payload: Any) -> Any:
        kind, value = payload
        if kind == "sleep":
            time.sleep(value)
        elif kind == "spin":
            while True:
                pass
        elif kind == "exit":
            os._exit(value)
        elif kind == "raise":
            raise KeyError(value)
        elif kind == "refuse":
            raise UserError(value)
        elif kind == "hoard":
            return len(bytearray(value))
        elif kind == "print":
            print("noise on standard output " * value, flush=True)
        elif kind == "pid":
            return os.getpid()
        elif kind == "child":
            return subprocess.Popen(["sleep", "60"]).pid
        return 2 * value

    return act


def misfit(setup: object) -> Callable[[Any], Any]:
    """A handler that cannot be set up."""
    raise UserError(f"setup: {setup}")


HANDLER = Handler(f"{__name__}:doubler")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    shared = Pool([HANDLER], workers=2, memory_mb=256)
    yield shared
    shared.close()


def item(kind: str, value: object, seconds: float = 10.0) -> Item:
    return Item(0, (kind, value), seconds)


def test_replies_come_in_the_order_of_the_items(pool: Pool) -> None:
    replies = pool.run([item("sleep", 0.2), *(item("double", n) for n in range(20))])
    assert [reply.value for reply in replies] == [0.4, *range(0, 40, 2)]
    assert 0.2 <= replies[0].seconds < 5


def test_a_stuck_item_costs_its_limit_and_none_of_its_neighbours(pool: Pool) -> None:
    pool.run([item("double", 1)] * 4)
    begun = time.monotonic()
    items = [item("double", 1), item("spin", 0, 0.5), *(item("double", n) for n in range(10))]
    replies = pool.run(items)
    assert replies[1].status == "timeout"
    assert 0.5 <= replies[1].seconds < 1.5
    assert [r.value for r in replies if r.status == "done"] == [2, *range(0, 20, 2)]
    assert time.monotonic() - begun < 8


def test_a_lost_worker_is_replaced(pool: Pool) -> None:
    replies = pool.run([item("exit", 3), item("double", 4), item("double", 5)])
    assert [reply.status for reply in replies] == ["died", "done", "done"]
    assert "code 3" in replies[0].detail


def test_memory_is_limited(pool: Pool) -> None:
    replies = pool.run([item("hoard", 2**30), item("hoard", 2**20)])
    assert [reply.status for reply in replies] == ["memory", "done"]


def test_what_a_handler_raises_stays_with_its_item(pool: Pool) -> None:
    replies = pool.run([item("raise", "x"), item("double", 3)])
    assert (replies[0].status, replies[0].detail) == ("failed", "KeyError: 'x'")
    assert replies[1].value == 6


def test_a_refusal_is_the_users_to_mend(pool: Pool) -> None:
    with pytest.raises(UserError, match="mend this"):
        pool.run([item("refuse", "mend this"), item("double", 3)])
    assert pool.run([item("double", 3)])[0].value == 6


def test_printing_does_not_disturb_the_replies(pool: Pool) -> None:
    assert pool.run([item("print", 1000)])[0].value == 2000


def test_callers_from_many_threads_get_their_own_replies(pool: Pool) -> None:
    found: dict[int, list[object]] = {}

    def ask(number: int) -> None:
        found[number] = [
            r.value for r in pool.run([item("double", number * 100 + n) for n in range(20)])
        ]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {t: [2 * (t * 100 + n) for n in range(20)] for t in range(6)}


def test_a_handler_that_cannot_be_set_up_refuses_everything() -> None:
    broken = Pool([Handler(f"{__name__}:misfit", "no such thing")], workers=1)
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(UserError, match="setup: no such thing"):
            broken.run([item("double", 1)] * 50)
    assert time.monotonic() - begun < 10
    broken.close()


def test_workers_that_cannot_start_are_not_retried_for_ever() -> None:
    broken = Pool([Handler("lydite.no_such_module:factory")], workers=1)
    replies = broken.run([item("double", 1)] * 5)
    assert {reply.status for reply in replies} == {"died"}
    broken.close()


def test_a_system_without_a_process_to_spare_is_answered_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    starved = Pool([HANDLER], workers=1)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        waiting = [starved.submit(item("double", 1)) for _ in range(3)]
        replies = [future.result(timeout=10) for future in waiting]
    assert {reply.status for reply in replies} == {"died"}
    assert "temporarily unavailable" in replies[0].detail
    starved.close()


def test_many_restarts_leave_no_process_and_no_descriptor(pool: Pool) -> None:
    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    pool.run([item("double", 1)] * 4)
    before = held()
    replies = pool.run([item("exit", 1)] * 6)
    pool.run([item("double", 1)] * 4)
    assert {reply.status for reply in replies} == {"died"}
    assert held() <= before


def test_closing_ends_the_workers_and_what_they_started() -> None:
    closing = Pool([HANDLER], workers=1)
    pid, child = (reply.value for reply in closing.run([item("pid", 0), item("child", 0)]))
    assert _alive(pid) and _alive(child)
    waiting = closing.submit(item("spin", 0, 60))
    closing.close()
    closing.close()
    assert waiting.result(timeout=5).status == "died"
    assert not _alive(pid)
    _wait_until(lambda: not _alive(child))
    with pytest.raises(RuntimeError):
        closing.run([item("double", 1)])


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
def test_no_worker_outlives_a_host_killed_outright() -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from lydite.verify.pool import Handler, Item, Pool
        pool = Pool([Handler("test_pool:doubler")], workers=1)
        print(pool.run([Item(0, ("pid", 0), 30.0)])[0].value, flush=True)
        pool.submit(Item(0, ("spin", 0), 600.0))
        time.sleep(600)
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    ) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert _alive(pid)
        host.send_signal(signal.SIGKILL)
    _wait_until(lambda: not _alive(pid))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def _wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
