"""Completions that are cut and gone on with: at equal weights they are what one call would give."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from test_budget import (
    BUDGETS,
    ENGINES,
    ONE,
    PLAIN,
    POLICY,
    assert_same,
    flat,
    ids_of,
    make_policy,
    requests_with,
)

from lydite.model.attention import NAME
from lydite.model.scoring import score
from lydite.rollout.budget import Tags
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.rollout.padded import PaddedEngine
from lydite.rollout.parts import Part, calls_of, parts_of
from lydite.types import Completion, InterruptibleEngine, Request, SamplingParams


def in_pieces(
    engine: LocalEngine | PaddedEngine, requests: Sequence[Request], every: int
) -> tuple[list[Part], int]:
    """All parts, with an interruption after ``every`` tokens of each row, and how many calls."""
    parts = [p for i, r in enumerate(requests) for p in parts_of(i, r, 0, Tags(ONE))]
    rounds = 0
    while waiting := [part for part in parts if not part.ended]:
        calls, steps = calls_of(waiting), 0

        def count(progress: object) -> None:
            nonlocal steps
            steps += 1
            if steps == every:
                engine.interrupt()

        heard: list[Completion] = []
        found = engine.stream(
            [call[0].request_for(len(call)) for call in calls],
            lambda index, completion, heard=heard: heard.append(completion),
            count,
        )
        engine._interruption.noticed()  # asked for at the very end, it is for the next call
        assert all(completion.finish != "abort" for completion in heard)
        for call, completions in zip(calls, found, strict=True):
            assert [c.sample for c in completions] == [part.sample for part in call]
            for part, completion in zip(call, completions, strict=True):
                part.go_on(completion, ONE)
        rounds += 1
    return parts, rounds


MAKE = [
    lambda: LocalEngine(POLICY),
    lambda: LocalEngine(POLICY, EngineConfig(max_rows=3)),
    lambda: PaddedEngine(PLAIN, EngineConfig(max_rows=7)),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("budget", [None, BUDGETS[1], BUDGETS[3], BUDGETS[4]])
def test_what_is_cut_goes_on_as_if_it_were_not(make, budget) -> None:
    requests = requests_with(budget)
    want = flat(ENGINES[0].generate(requests))
    engine = make()
    assert isinstance(engine, InterruptibleEngine)
    parts, rounds = in_pieces(engine, requests, 5)
    assert rounds > 4
    assert_same([part.whole() for part in parts], want)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_stop_string_is_found_across_a_cut(every) -> None:
    free = flat(ENGINES[0].generate(requests_with(None)))
    texts = sorted((completion.text for completion in free), key=len)
    stop = (texts[-1][4:7], texts[-2][7:9], "zz")
    requests = requests_with(None, stop=stop)
    want = flat(ENGINES[0].generate(requests))
    assert sum(completion.finish == "stop" for completion in want) >= 2
    parts, _ = in_pieces(LocalEngine(POLICY), requests, every)
    assert_same([part.whole() for part in parts], want)


def test_a_stop_string_does_not_reach_back_over_what_was_injected() -> None:
    """The tag ends in `>`; what is said after it begins anew."""
    requests = requests_with(BUDGETS[1])
    free = flat(ENGINES[0].generate(requests))
    first = [c for c in free if c.thought is not None and c.thought.cut]
    after = {c.text[c.text.index("</think>") + 8 :][:1] for c in first} - {""}
    stop = tuple(f">{sign}" for sign in sorted(after))
    bound = requests_with(BUDGETS[1], stop=stop)
    want = flat(ENGINES[0].generate(bound))
    parts, _ = in_pieces(LocalEngine(POLICY), bound, 2)
    assert_same([part.whole() for part in parts], want)


def test_each_token_keeps_the_version_and_the_log_probability_of_what_sampled_it() -> None:
    old, new = make_policy(NAME), make_policy(NAME)
    with torch.no_grad():
        for parameter in new.model.parameters():
            parameter.mul_(1.3)
    engines = {3: LocalEngine(old), 5: LocalEngine(new)}
    request = Request("p", tuple(ids_of("abcd")), 3, SamplingParams(12))
    parts = parts_of(0, request, 0, Tags(ONE))
    for version, engine in engines.items():
        engine.version = version
        for part in parts:
            part.until = 4 if version == 3 else 12
        calls = calls_of(parts)
        found = engine.generate([call[0].request_for(len(call)) for call in calls])
        for call, completions in zip(calls, found, strict=True):
            for part, completion in zip(call, completions, strict=True):
                part.go_on(completion, ONE)
    for part in parts:
        whole = part.whole()
        assert whole.versions == (3, 5) and whole.changes == ((4, 5),)
        assert whole.version_runs == [(3, 4), (5, len(whole.token_ids) - 4)]
        for policy, where in ((old, slice(0, 4)), (new, slice(4, None))):
            with torch.no_grad():
                want, _ = score(policy, [whole.prompt_ids], [[whole.token_ids]])
            torch.testing.assert_close(
                torch.tensor(whole.logprobs)[where], want[0][where], atol=1e-4, rtol=0
            )


def test_an_interruption_between_calls_is_for_the_next_one_alone() -> None:
    engine = LocalEngine(POLICY)
    engine.interrupt()
    request = requests_with(None)[0]
    (cut,) = engine.generate([request])
    assert {(c.finish, c.token_ids, c.text) for c in cut} == {("abort", (), "")}
    assert [c.sample for c in cut] == [0, 1, 2, 3]
    (whole,) = engine.generate([request])
    assert all(c.finish != "abort" for c in whole)


def test_injected_tokens_have_no_version() -> None:
    made = Completion(
        "p", 0, (1,), (5, 6, 7, 8), (-1.0, 0.0, 0.0, -1.0), (1, 0, 0, 1), "stop", "", (1, 2),
        changes=((2, 2),),
    )  # fmt: skip
    assert made.version_runs == [(1, 1), (2, 1)]
