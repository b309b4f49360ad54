"""How a reward behaves, whatever it is for: the same for the same, finite, in time, without
raising.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lydite.types import Verifier
from lydite.verify.audit.attack import Target
from lydite.verify.audit.trial import Pair, Trial, ask, together

THREADS = 4
SAME = 1e-9
_WRONG_COUNT = ("rewards for", "verdicts for")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One thing that every reward should do, and whether this one does."""

    name: str
    passed: bool
    detail: str = ""


def observed(trials: Sequence[tuple[Pair, Trial]], seconds: float) -> list[Behaviour]:
    """What the attacks themselves have shown."""
    errors: dict[str, list[str]] = {"raises nothing": [], "finite": [], "one reward each": []}
    slow: list[str] = []
    for _, trial in trials:
        said = trial.error or (trial.detail if trial.crashed else "")
        if trial.crashed and trial.seconds >= 0.9 * seconds:
            slow.append(said or f"{trial.seconds:.1f} s")
        elif trial.crashed and ("finite" in said or said.startswith("the reward is")):
            errors["finite"].append(said)
        elif trial.crashed and any(sign in said for sign in _WRONG_COUNT):
            errors["one reward each"].append(said)
        elif trial.crashed:
            errors["raises nothing"].append(said)
    slowest = max((trial.seconds for _, trial in trials), default=0.0)
    found = [_from(name, said, len(trials)) for name, said in errors.items()]
    bounded = _from("bounded time", slow, len(trials))
    if bounded.passed:
        bounded = Behaviour("bounded time", True, f"the slowest took {slowest:.1f} s")
    return [*found, bounded]


def _from(name: str, said: Sequence[str], total: int) -> Behaviour:
    if not said:
        return Behaviour(name, True)
    return Behaviour(name, False, f"{len(said)} of {total} completions, such as: {said[0]}")


def repeated_calls(
    verifier: Verifier, sample: Sequence[tuple[Pair, Trial]], seed: int, grouped: bool = False
) -> list[Behaviour]:
    """The same completions again: alone, together, shuffled, beside their twins, from threads.

    With ``grouped``, for a reward that compares the completions of a problem, each alone and all in
    the same batch only: what else stands in the batch may change its rewards.
    """
    pairs = [pair for pair, _ in sample]
    before = [trial.reward for _, trial in sample]
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)

    def shuffled() -> list[float | None]:
        found = together(verifier, [pairs[index] for index in order])
        back = dict(zip(order, found, strict=True))
        return [back[index].reward for index in range(len(pairs))]

    def batched() -> list[float | None]:
        return [trial.reward for trial in together(verifier, pairs)]

    def threaded() -> list[float | None]:
        expected = batched() if grouped else before
        with ThreadPoolExecutor(THREADS) as pool:
            asked = [pool.submit(together, verifier, pairs) for _ in range(THREADS)]
            results = [[trial.reward for trial in future.result()] for future in asked]
        odd = next((result for result in results if not _equal(expected, result)), None)
        if grouped:
            return before if odd is None else odd
        return results[0] if odd is None else odd

    def beside_twins() -> list[float | None]:
        found = together(verifier, [pair for pair in pairs for _ in range(3)])
        rewards = [trial.reward for trial in found]
        return [_agreed(rewards[3 * index : 3 * index + 3]) for index in range(len(pairs))]

    checks: list[tuple[str, Callable[[], list[float | None]]]] = [
        ("deterministic", lambda: [ask(verifier, pair).reward for pair in pairs]),
        ("alone or in a batch", batched),
        ("any order", shuffled),
        ("beside its copies", beside_twins),
        ("from threads", threaded),
    ]
    if grouped:
        checks = [each for each in checks if each[0] in ("deterministic", "from threads")]
    found = []
    for name, check in checks:
        try:
            after = check()
        except Exception as error:
            found.append(Behaviour(name, False, " ".join(str(error).split())[:300]))
            continue
        found.append(_compared(name, pairs, before, after))
    return found


def _agreed(rewards: Sequence[float | None]) -> float | None:
    """The common reward, or one that equals no other."""
    return rewards[0] if all(_equal([rewards[0]], [each]) for each in rewards) else float("nan")


def _equal(before: Sequence[float | None], after: Sequence[float | None]) -> bool:
    return all(map(_close, before, after))


def _close(one: float | None, two: float | None) -> bool:
    if one is None or two is None:
        return one is two
    return abs(one - two) <= SAME


def _compared(
    name: str,
    pairs: Sequence[Pair],
    before: Sequence[float | None],
    after: Sequence[float | None],
) -> Behaviour:
    differing = [index for index in range(len(pairs)) if not _close(before[index], after[index])]
    if not differing:
        return Behaviour(name, True, f"{len(pairs)} completions")
    first = differing[0]
    return Behaviour(
        name,
        False,
        f"{len(differing)} of {len(pairs)} rewards change, such as {before[first]} to "
        f"{after[first]} for {pairs[first][1]!r:.80}",
    )


def repetition(verifier: Verifier, targets: Sequence[Target]) -> Behaviour:
    """Saying the same wrong thing more often must not pay more."""
    for target in targets:
        for once in (target.place(target.wrong), "Let me think about it. "):
            one = ask(verifier, (target.problem, once))
            for times in (2, 10, 100):
                many = ask(verifier, (target.problem, "\n".join([once] * times)))
                if many.reward is not None and many.reward > (one.reward or 0.0) + SAME:
                    return Behaviour(
                        "repeating pays nothing",
                        False,
                        f"{once!r:.60} {times} times is paid {many.reward:g}, once "
                        f"{one.reward or 0:g}",
                    )
    return Behaviour("repeating pays nothing", True, f"{len(targets)} problems")


def inputs_kept(verifier: Verifier, pairs: Sequence[Pair]) -> Behaviour:
    """The problems are as they were after they were scored."""
    problems = [pair[0] for pair in pairs]
    before = copy.deepcopy([dict(problem.fields) for problem in problems])
    for pair in pairs:
        ask(verifier, pair)
    changed = [
        problem.id
        for problem, fields in zip(problems, before, strict=True)
        if dict(problem.fields) != fields
    ]
    detail = f"columns of {changed[0]} changed" if changed else f"{len(problems)} problems"
    return Behaviour("inputs stay as they are", not changed, detail)
