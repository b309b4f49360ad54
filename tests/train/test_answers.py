"""Verdicts while others are still decoded: the same ones, whatever the order and the pieces."""

import random
import threading
from pathlib import Path

import pytest

from lydite.config import UserError, validate
from lydite.rollout.engine import takes_every_processor
from lydite.rollout.select import local_engine
from lydite.train.answers import sample_and_verify
from lydite.types import (
    Completion,
    Message,
    Outcome,
    Problem,
    Request,
    SamplingParams,
    Verdict,
)
from lydite.verify.settings import VerifierConfig
from lydite.verify.verifier import build

PARAMS = SamplingParams(max_tokens=8)


class Streaming:
    """Ends completions in an order of its own; ``told`` counts those handed over so far."""

    version = 0

    def __init__(self, seed=0, before=lambda told: None, text="{name}/{step}/{number}"):
        self.seed = seed
        self.text = text
        self.before = before
        self.told = 0

    def generate(self, requests):
        return self.stream(requests, lambda request, completion: None)

    def stream(self, requests, on_completion):
        found = [
            [
                Completion(r.problem_id, n, r.prompt_ids, (7,), (-0.5,), (1,), "stop",
                           self.text.format(name=r.problem_id, step=r.step, number=n, x="x" * n))
                for n in range(r.first_sample, r.first_sample + r.samples)
            ]
            for r in requests
        ]  # fmt: skip
        order = [(i, c) for i, group in enumerate(found) for c in group]
        random.Random(self.seed).shuffle(order)
        for index, completion in order:
            self.before(self.told)
            on_completion(index, completion)
            self.told += 1
        return found


class Echo:
    """Says back what it was asked, and with what beside it."""

    def __init__(self, unit="completion"):
        self.unit = unit
        self.calls = []
        self.lock = threading.Lock()

    def verify(self, problems, texts):
        with self.lock:
            self.calls.append(list(texts))
        together = self._together(problems)
        return [
            Verdict(Outcome.CORRECT, 1.0, answer=text, detail=detail)
            for text, detail in zip(texts, together, strict=True)
        ]

    def _together(self, problems):
        """How many stand side by side for one problem; nothing where that is not looked at."""
        if self.unit == "completion":
            return [""] * len(problems)
        found, start = [], 0
        for end in range(1, len(problems) + 1):
            if end == len(problems) or problems[end].id != problems[start].id:
                found += [str(end - start)] * (end - start)
                start = end
        return found

    def close(self):
        pass


class Whole(Echo):
    """The same, asked in one call."""

    def __init__(self, unit):
        super().__init__(unit)
        del self.unit
        self._unit = unit

    def _together(self, problems):
        self.unit = self._unit
        try:
            return super()._together(problems)
        finally:
            del self.unit


def requests_for(names, samples=4):
    """Problem names in batch order; a name that comes again is another epoch's draw."""
    problems = [Problem(n, n, (Message("user", n),), reference="1") for n in names]
    requests, seen = [], {}
    for name in names:
        epoch = seen[name] = seen.get(name, -1) + 1
        requests.append(Request(name, (1, 2), samples, PARAMS, 3, first_sample=epoch * samples))
    return problems, requests


@pytest.mark.parametrize("unit", ["completion", "problem"])
@pytest.mark.parametrize("names", ["abcdefgh", "aabca", "abababab"])
def test_verdicts_are_those_of_one_call_at_the_end(unit, names):
    problems, requests = requests_for(names)
    _, wanted = sample_and_verify(Streaming(), Whole(unit), problems, requests)
    for seed in range(20):
        completions, found = sample_and_verify(Streaming(seed), Echo(unit), problems, requests)
        assert found == wanted
        assert [[c.text for c in group] for group in completions] == [
            [v.answer for v in group] for group in found
        ]


def test_a_completion_is_verified_while_others_are_decoded():
    """The engine goes on only when what it handed over has been verified: without overlap it would
    wait for ever.
    """
    problems, requests = requests_for("abc")
    verifier = Echo()

    def wait(told):
        done = threading.Event()
        for _ in range(2000):
            if sum(map(len, verifier.calls)) >= told:
                return
            done.wait(0.005)
        raise AssertionError("nothing was verified before the end")

    sample_and_verify(Streaming(before=wait), verifier, problems, requests)
    assert len(verifier.calls) > 1


def test_a_group_is_verified_when_its_last_completion_is_there():
    problems, requests = requests_for("abc")
    verifier = Echo("problem")
    sample_and_verify(Streaming(5), verifier, problems, requests)
    for call in verifier.calls:
        names = [text.split("/")[0] for text in call]
        assert all(names.count(name) == 4 for name in names)
        numbers = {name: [t for t in call if t.startswith(name)] for name in names}
        assert all(texts == sorted(texts) for texts in numbers.values())  # in sample order


def test_what_comes_in_meanwhile_is_asked_in_one_call():
    """A verifier that is behind is not asked once for each completion."""
    problems, requests = requests_for("abcdefgh", samples=8)
    everything, verifier = threading.Event(), Echo()
    asked = verifier.verify

    def slow(problems, texts):
        assert everything.wait(10)
        return asked(problems, texts)

    verifier.verify = slow
    engine = Streaming(before=lambda told: everything.set() if told == 63 else None)
    sample_and_verify(engine, verifier, problems, requests)
    assert len(verifier.calls) <= 6 and sum(map(len, verifier.calls)) == 64


@pytest.mark.parametrize(
    "error", [UserError("mend it"), RuntimeError("a bug"), KeyboardInterrupt()]
)
def test_what_the_verifier_raises_ends_the_sampling(error):
    problems, requests = requests_for("abcdefgh")

    class Raises(Echo):
        def verify(self, problems, texts):
            raised.set()
            raise error

    raised = threading.Event()
    engine = Streaming(before=lambda told: raised.wait(10) if told else None)
    with pytest.raises(type(error)) as caught:
        sample_and_verify(engine, Raises(), problems, requests)
    assert caught.value is error
    # One or two more may be handed in before the error is noted down.
    assert engine.told <= 30


def test_what_the_engine_raises_leaves_no_thread_behind():
    problems, requests = requests_for("abcdefgh")

    def broken(told):
        if told == 5:
            raise FloatingPointError("diverged")

    with pytest.raises(FloatingPointError):
        sample_and_verify(Streaming(before=broken), Echo(), problems, requests)
    for thread in threading.enumerate():
        if thread.name.startswith("answers-"):
            thread.join(10)
            assert not thread.is_alive()


class Busy(Streaming):
    """Has every processor, or not."""

    def __init__(self, busy, **more):
        super().__init__(**more)
        self.busy = busy


@pytest.mark.parametrize("unit", ["completion", "problem"])
@pytest.mark.parametrize("busy", [True, False])
def test_where_sampling_has_every_processor_single_completions_wait_for_its_end(unit, busy):
    def before(told):
        names = [thread.name for thread in threading.enumerate()]
        asking.append(any(name.startswith("answers-") for name in names))

    asking = []
    problems, requests = requests_for("abc")
    engine = Busy(busy, before=before)
    found, verdicts = sample_and_verify(engine, Echo(unit), problems, requests)
    assert [[v.answer for v in row] for row in verdicts] == [[c.text for c in g] for g in found]
    assert asking == [not (busy and unit == "completion")] * 12


def test_what_a_verifier_raises_at_the_end_is_raised_there():
    class Broken(Echo):
        def verify(self, problems, texts):
            raise UserError("no sandbox")

    problems, requests = requests_for("ab")
    with pytest.raises(UserError, match="no sandbox"):
        sample_and_verify(Busy(True), Broken(), problems, requests)


@pytest.mark.parametrize(
    ("device", "threads", "processors", "expected"),
    [("cpu", 2, 2, True), ("cpu", 1, 1, False), ("cpu", 2, 4, False), ("cuda:0", 2, 2, False)],
)
def test_all_threads_of_several_are_every_processor(
    monkeypatch, device, threads, processors, expected
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)), raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert takes_every_processor(device) == expected


def test_an_engine_that_does_not_stream_is_asked_as_before():
    class Plain:
        version = 0

        def generate(self, requests):
            return Streaming().generate(requests)

    problems, requests = requests_for("ab")
    verifier = Echo()
    sample_and_verify(Plain(), verifier, problems, requests)
    assert len(verifier.calls) == 1


@pytest.mark.parametrize(
    ("rewards", "unit"),
    [
        ("exact", "all"),  # within this process: nothing to gain
        ("math", "completion"),
        (["math", {"kind": "length", "rule": "relative"}], "problem"),
        ([{"kind": "function", "function": "r.py:f"}, "math"], "problem"),
        ([{"kind": "gate", "require": ["format"], "then": [
            {"kind": "function", "function": "r.py:f"}]}, "math"], "problem"),
        ({"kind": "function", "function": "r.py:f", "isolation": "process"}, "problem"),
        ({"kind": "function", "function": "r.py:f", "isolation": "inline"}, "all"),
        ("code", "completion"),
        ("sql", "completion"),
    ],
)  # fmt: skip
def test_how_small_a_piece_a_verifier_may_be_asked(rewards, unit, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.py").write_text("def f(completions, **columns): return [1.0] * len(completions)")
    verifier = build(validate(VerifierConfig, {"rewards": rewards}))
    try:
        assert verifier.unit == unit
    finally:
        verifier.close()


def test_real_rewards_in_pieces_say_what_they_say_at_once(tmp_path: Path):
    """Math in processes and in this one, a function that ranks a group, a length term that compares
    it.
    """
    (tmp_path / "r.py").write_text(
        "def rank(completions, **columns):\n"
        "    return [sum(len(c) < len(o) for o in completions) / 10 for c in completions]\n"
    )
    rewards = [
        {"kind": "math", "answer": "boxed"},
        {"kind": "function", "function": f"{tmp_path}/r.py:rank", "isolation": "process"},
        {"kind": "length", "rule": "relative", "weight": 0.1},
    ]
    config = validate(VerifierConfig, {"rewards": rewards})
    problems, requests = requests_for("abac")
    verifier = build(config)
    try:
        text = r"{x} \boxed{{{number}}}"
        completions = Streaming(text=text).generate(requests)
        flat = [(p, c.text) for p, g in zip(problems, completions, strict=True) for c in g]
        wanted = verifier.verify(*zip(*flat, strict=True))
        _, found = sample_and_verify(Streaming(4, text=text), verifier, problems, requests)
        assert [v for group in found for v in group] == wanted
        assert len({v.reward for v in wanted}) > 4
        assert {v.outcome for v in wanted} == {Outcome.CORRECT, Outcome.WRONG}
    finally:
        verifier.close()


@pytest.mark.parametrize("flat", [True, False])
def test_engines_hand_over_each_completion_as_it_ends(flat, tiny):
    policy = tiny()
    policy.flat = flat
    if not flat:
        policy.model.set_attn_implementation("sdpa")
    engine = local_engine(policy)
    requests = [Request(n, (3, 4 + i), 3, SamplingParams(12)) for i, n in enumerate("abcd")]
    heard = []
    found = engine.stream(requests, lambda index, completion: heard.append((index, completion)))
    assert found == engine.generate(requests)
    flat_found = [(i, c) for i, group in enumerate(found) for c in group]
    assert sorted(heard, key=lambda x: (x[0], x[1].sample)) == flat_found
    lengths = [len(c.token_ids) for _, c in heard]
    assert lengths == sorted(lengths) and len(set(lengths)) > 1  # they all started together
