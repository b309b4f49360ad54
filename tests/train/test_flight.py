"""Groups in flight: what is trained on, how old it is, that no draw is lost or trained twice."""

from test_ahead import Parity, equal, weights_of

from lydite.rollout.budget import Tags
from lydite.rollout.detached import DetachedLocalEngine
from lydite.rollout.select import local_engine
from lydite.train.evaluate import Prompt, SamplingConfig
from lydite.train.learner import Learner
from lydite.train.optimizer import OptimizerConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.types import Message, Problem

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
