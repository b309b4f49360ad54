"""What a sandbox costs: from nothing, from the stock, for each further input, for each request.

    python benchmarks/sandbox.py [--seconds 5] [--workers 1 2]

For both kinds of sandbox that this machine has: milliseconds (median and 95th percentile), then
whole programs and further inputs checked per second by so many callers at once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable

from lydite.verify.sandbox import Program, Sandbox
from lydite.verify.sandbox.backends import BACKENDS, Starter, fault_of

TYPICAL = b"""
from collections import Counter
import sys

def solve(numbers):
    seen = Counter(numbers)
    return max(seen, key=lambda n: (seen[n], n))

numbers = list(map(int, sys.stdin.read().split()))
print(solve(numbers))
"""
SERVER = b"""
import os
def take(size):
    parts = b""
    while len(parts) < size:
        parts += os.read(3, size - len(parts))
    return parts
while True:
    size = take(4)
    os.write(3, size + take(int.from_bytes(size, "big")))
"""
PROGRAM = Program(("python", "main.py"), {"main.py": TYPICAL})
INPUT = " ".join(str(n * n % 97) for n in range(200)).encode()


def measured(act: Callable[[], object], rounds: int, rest: float = 0.0) -> str:
    """Median and 95th percentile of ``act`` in milliseconds, ``rest`` seconds between."""
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        taken.append((time.perf_counter() - begun) * 1000)
        time.sleep(rest)
    taken.sort()
    return f"{statistics.median(taken):8.2f} {taken[int(len(taken) * 0.95)]:8.2f}"


def throughput(act: Callable[[], object], workers: int, seconds: float) -> float:
    """Calls of ``act`` per second by ``workers`` threads."""
    counts = [0] * workers
    stop = time.monotonic() + seconds

    def work(number: int) -> None:
        while time.monotonic() < stop:
            act()
            counts[number] += 1

    begun = time.monotonic()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begun)


def cold(starter: Starter) -> None:
    with starter.start() as box:
        box.ready()


def report(name: str, seconds: float, workers: list[int]) -> None:
    starter = Starter(name)  # type: ignore[arg-type]
    print(f"{name:42}   median      p95  ms")
    print(f"  {'start a sandbox from nothing':40}{measured(lambda: cold(starter), 40)}")
    with Sandbox(name, slots=max(workers)) as sandbox:  # type: ignore[arg-type]
        sandbox.run(PROGRAM, INPUT)
        whole = measured(lambda: sandbox.run(PROGRAM, INPUT), 40, rest=0.1)
        print(f"  {'a program, its sandbox waiting':40}{whole}")
        with sandbox.runner(PROGRAM) as runner:
            print(f"  {'the same program on a further input':40}{measured(runner_of(runner), 200)}")
        with sandbox.start(Program(("python", "main.py"), {"main.py": SERVER})) as session:
            session.exchange(b"x")
            print(
                f"  {'a request to a running program':40}"
                f"{measured(lambda: session.exchange(b'x' * 100), 2000)}"
            )
        for count in workers:
            rate = throughput(lambda: sandbox.run(PROGRAM, INPUT), count, seconds)
            print(f"  programs a second, {count} at once: {rate:.1f}")


def runner_of(runner: object) -> Callable[[], object]:
    return lambda: runner.run(INPUT)  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a throughput run")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    given = parser.parse_args()
    for name in BACKENDS:
        fault = fault_of(name)
        if fault is None:
            report(name, given.seconds, given.workers)
        else:
            print(f"{name}: {fault}")


if __name__ == "__main__":
    main()
