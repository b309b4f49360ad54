"""Groups in flight: what is trained on, how old it is, that no draw is lost or trained twice."""

import json
import random
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ahead import Parity, equal, weights_of

from lydite.config import UserError
from lydite.rollout.budget import Tags
from lydite.rollout.detached import DetachedLocalEngine, Stopped
from lydite.rollout.sampler import Sampler
from lydite.rollout.select import local_engine
from lydite.train.collecting import Collector, Phase
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.flight import Flight
from lydite.train.learner import Learner
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Completion, Message, Outcome, Problem, Verdict

STEPS = 6


class Learns(Learner):
    """Waits, after each update, for what the test asks for."""

    after = staticmethod(lambda: None)

    def update(self, *arguments):
        found = super().update(*arguments)
        self.after()
        return found


def prompts_of(count):
    problems = [Problem(f"p{i}", "q", (Message("user", "q"),)) for i in range(count)]
    return [Prompt(p, (5, 6 + i)) for i, p in enumerate(problems)]


def trainer(policy, staleness=2, objective="grpo+tis", verifier=None, **changes):
    tokens = changes.pop("max_tokens", 12)
    config = RLConfig(
        **{
            "steps": STEPS, "prompts_per_step": 2, "group_size": 4, "staleness": staleness,
            "objective": objective, "sampling": SamplingConfig(max_tokens=tokens),
            "optimizer": OptimizerConfig(lr=0.02), "asynchronous": True, "patience": 120, **changes,
        }
    )  # fmt: skip
    parts = RLParts(
        local_engine(policy), verifier or Parity(), Learns(policy, config.optimizer, config.update),
        config.build_objective(), ahead=DetachedLocalEngine(policy),
        in_flight=Tags(policy.tokenizer),
    )  # fmt: skip
    return RLTrainer(config, parts, prompts_of(5), seed=0), parts


def test_every_step_trains_and_no_token_is_older_than_allowed(tiny):
    policy = tiny()
    before = weights_of(policy)
    rl, parts = trainer(policy)
    results = [rl.step(step) for step in range(STEPS)]
    rl.close()
    assert not equal(before, weights_of(policy))
    assert parts.engine.version == STEPS
    for result in results:
        assert result.metrics["groups"] == 2
        assert 0 <= result.metrics["staleness"] <= result.metrics["staleness_max"] <= 2
        assert result.metrics["seconds_wait"] >= 0
    drawn = [(s.problem_id, s.sample) for r in results for s in r.samples]
    assert len(drawn) == len(set(drawn)) == STEPS * 8


class Letters:
    """A tokenizer of letters."""

    pad_token_id = 0

    def decode(self, ids, **_):
        return "".join(chr(96 + token) for token in ids)


class Fitful:
    """An engine that lets some completions end, others go on, as dice have it. The first token of
    a completion says what it is worth.
    """

    def __init__(self, seed, stops=True):
        self.version = 0
        self.dice = random.Random(seed)
        self.asked = threading.Event()
        self.stopped = False
        self.begun = {}
        self.cut = 0

    def snapshot(self):
        return {}

    def load_weights(self, weights, version):
        self.version = version

    def interrupt(self):
        self.asked.set()

    def stop(self):
        self.stopped = True
        self.asked.set()

    def generate(self, requests):
        return self.stream(requests, lambda index, completion: None)

    def stream(self, requests, hear):
        found = [{} for _ in requests]
        left = [(i, r.first_sample + s) for i, r in enumerate(requests) for s in range(r.samples)]
        self.dice.shuffle(left)
        while left and not (self.asked.is_set() or self.dice.random() < 0.05):
            index, sample = left.pop()
            found[index][sample] = self.one(requests[index], sample, whole=True)
            hear(index, found[index][sample])
        if self.stopped:
            raise Stopped
        self.asked.clear()
        for index, sample in left:
            found[index][sample] = self.one(requests[index], sample, whole=False)
            self.cut += bool(found[index][sample].token_ids)
        return [[row[sample] for sample in sorted(row)] for row in found]

    def one(self, request, sample, whole):
        most = request.params.max_tokens
        count = most if whole else self.dice.randrange(most)
        ids = [1 + (sample + request.position + i) % 3 for i in range(count)]
        versions = (self.version, self.version)
        return Completion(
            request.problem_id, sample, request.prompt_ids, tuple(ids), (-0.5,) * count,
            (1,) * count, "length" if whole else "abort", Letters().decode(ids), versions,
        )  # fmt: skip


class Worth:
    """What a text is worth: by its first letter, or, for `solved` problems, always all."""

    def __init__(self, solved=()):
        self.solved = solved

    def verify(self, problems, texts):
        right = [
            problem.id in self.solved or (text[:1] == "a" and problem.id != "p0")
            for problem, text in zip(problems, texts, strict=True)
        ]
        return [Verdict(Outcome.CORRECT, 1.0) if r else Verdict(Outcome.WRONG, 0.0) for r in right]

    def close(self):
        pass


def flight_of(config, engine, live, phases):
    collector = Collector(config, config.build_objective(), (engine, 1.0), phases, 3, 0)
    tags = SimpleNamespace(tokenizer=Letters())
    return Flight(config, collector, (live, engine), tags, 0)


def keys_of(scored):
    size = len(scored.group.completions)
    return scored.group.problem.id, scored.group.completions[0].sample // size


def draws_of(count, problems):
    sampler = Sampler([p.problem for p in prompts_of(problems)], 3)
    return [(d.problem.id, d.epoch) for d in sampler.next(count)]


class Story:
    """A stage that takes steps, is saved, and is killed: what it trained on and what it rejected,
    by the step that did.
    """

    def __init__(self, config, phases, seeds):
        self.config, self.phases, self.seeds = config, phases, iter(seeds)
        self.step, self.version, self.trained, self.rejected = 0, 0, {}, {}
        self.saved = None
        self.begin()

    def begin(self):
        self.live = SimpleNamespace(version=self.version)
        self.engine = Fitful(next(self.seeds))
        self.flight = flight_of(self.config, self.engine, self.live, self.phases)

    def take(self):
        rollout = self.flight.take(self.step)
        for scored in rollout.collected.groups:
            assert keys_of(scored) not in self.trained
            self.trained[keys_of(scored)] = self.step
            for completion in scored.group.completions:
                self.check(completion)
        for scored in rollout.collected.seen:
            if keys_of(scored) not in self.trained:
                assert keys_of(scored) not in self.rejected
                self.rejected[keys_of(scored)] = self.step
        self.step += 1
        if rollout.collected.groups:
            self.version = self.live.version = self.version + 1
            self.flight.publish(self.version)
        return rollout

    def check(self, completion):
        assert len(completion.token_ids) == self.config.sampling.max_tokens
        for then, count in completion.version_runs:
            assert count and 0 <= self.version - then <= self.config.staleness

    def save(self):
        state = json.loads(json.dumps(self.flight.state()))
        self.saved = (self.step, self.version, dict(self.trained), dict(self.rejected)), state

    def die(self):
        self.flight.close()
        (self.step, self.version, trained, rejected), state = self.saved
        self.trained, self.rejected = dict(trained), dict(rejected)
        self.begin()
        self.flight.load({}, state)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_draw_is_lost_or_trained_twice_whatever_happens(data):
    """Rollouts that go on, are cut and end in any order, with kills, each of which goes on from
    the last checkpoint.
    """
    dynamic = data.draw(st.booleans())
    steps, size = 8, data.draw(st.integers(1, 3))
    config = settings_of(
        steps=steps, prompts_per_step=size, staleness=data.draw(st.integers(1, 3)),
        objective="grpo+tis+dynamic_sampling" if dynamic else "grpo+tis",
    )  # fmt: skip
    problems, every = data.draw(st.integers(4, 9)), data.draw(st.integers(1, 3))
    kills = data.draw(st.lists(st.integers(1, steps - 1), max_size=3))
    seeds = data.draw(st.lists(st.integers(0, 99), min_size=4, max_size=4))
    story = Story(config, [Phase(0, prompts_of(problems), Worth())], seeds)
    story.save()
    try:
        while story.step < steps:
            rollout = story.take()
            assert dynamic or len(rollout.collected.groups) == size
            if story.step % every == 0:
                story.save()
            if story.step in kills:
                kills.remove(story.step)
                story.die()
        state = story.flight.state()["in_flight"]
    finally:
        story.flight.close()
    # All draws up to where the walk stands are trained on, rejected, or still open: each once.
    opened = [(name, epoch) for name, epoch, _ in state["open"]]
    accounted = [*story.trained, *story.rejected, *opened]
    assert len(accounted) == len(set(accounted))
    assert set(accounted) == set(draws_of(len(accounted), problems))
    assert state["fates"].get("trained", 0) == len(story.trained)
    assert state["fates"].get("rejected", 0) == len(story.rejected)
    assert dynamic or (not opened and len(story.trained) == steps * size)


def settings_of(**changes):
    return RLConfig(
        **{
            "steps": 8, "prompts_per_step": 2, "group_size": 4, "asynchronous": True,
            "patience": 60, "staleness": 2, "objective": "grpo+tis",
            "sampling": SamplingConfig(max_tokens=5), **changes,
        }
    )  # fmt: skip


def fill(story, count):
    """Waits until so many groups are in flight."""
    end = time.monotonic() + 60
    while len(story.flight.state()["in_flight"]["open"]) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


def told(story, steps, open_before=0):
    try:
        for step in range(steps):
            fill(story, open_before if step else 0)
            story.take()
        return story.flight.state()
    finally:
        story.flight.close()


def test_solved_problems_are_retired_in_flight_too():
    config = settings_of(objective="grpo+tis+retire_solved", steps=12)
    solved = {"p1"}
    story = Story(config, [Phase(0, prompts_of(3), Worth(solved))], [7])
    state = told(story, 6, open_before=3)
    assert set(state["retired"]) == solved
    first = {name: min(s for (n, _), s in story.trained.items() if n == name) for name in solved}
    for (name, _), step in story.trained.items():
        assert name not in solved or step == first[name], "none that was in flight comes after"
    assert state["in_flight"]["fates"]["retired"] >= 1
    assert not {name for name, _, _ in state["in_flight"]["open"]} & solved


def test_a_phase_with_other_problems_drops_what_is_in_flight():
    other = [Prompt(Problem(f"q{i}", "q", (Message("user", "q"),)), (5, 6)) for i in range(5)]
    phases = [Phase(0, prompts_of(5), Worth()), Phase(4, other, Worth())]
    story = Story(settings_of(), phases, [3])
    state = told(story, 7, open_before=1)
    for (name, _), step in story.trained.items():
        assert name[0] == ("p" if step < 4 else "q")
    assert len(story.trained) == 14 and state["phase"] == 1
    assert state["in_flight"]["fates"]["dropped"] >= 1


def test_a_phase_with_another_reward_judges_all_of_its_groups_by_it():
    class Counts(Worth):
        seen = 0

        def verify(self, problems, texts):
            self.seen += len(texts)
            return [Verdict(Outcome.CORRECT, 2.0) for _ in texts]

    prompts, late = prompts_of(5), Counts()
    story = Story(settings_of(), [Phase(0, prompts, Worth()), Phase(4, prompts, late)], [3])
    rewards = []
    try:
        for _ in range(8):
            rollout = story.take()
            rewards.append({r for s in rollout.collected.groups for r in s.group.rewards})
    finally:
        story.flight.close()
    assert all(found <= {0.0, 1.0} for found in rewards[:4])
    assert all(found == {2.0} for found in rewards[4:])
    assert set(story.trained) == set(draws_of(16, 5)), "the walk goes on"


def test_what_goes_wrong_beside_is_raised_at_the_next_step():
    class Fails(Worth):
        def verify(self, problems, texts):
            raise UserError("of all things")

    story = Story(settings_of(), [Phase(0, prompts_of(5), Fails())], [3])
    with pytest.raises(UserError, match="of all things"):
        told(story, 1)


def test_a_wait_in_vain_ends_and_says_what_for():
    class Hangs(Worth):
        def verify(self, problems, texts):
            released.wait(60)
            return super().verify(problems, texts)

    released = threading.Event()
    story = Story(settings_of(patience=0.5), [Phase(0, prompts_of(5), Hangs())], [3])
    with pytest.raises(UserError, match="wait for their verdicts, 0 of the 2 of a step are there"):
        told(story, 1)
    released.set()


def test_a_checkpoint_whose_problems_are_gone_is_refused():
    story = Story(settings_of(), [Phase(0, prompts_of(5), Worth())], [3, 4])
    story.take()
    story.flight.close()
    state = story.flight.state()
    state["in_flight"]["open"].append(["gone", 0, 0])
    story.begin()
    with pytest.raises(UserError, match="'gone' was being sampled"):
        story.flight.load({}, state)


def test_asynchronous_needs_a_bound():
    with pytest.raises(ValueError, match="asynchronous: needs staleness of 1 or more"):
        RLConfig(asynchronous=True)
    assert RLConfig(asynchronous=True, staleness=4).copies == 3
