"""The loop with fakes: what joins engine, verifier, objective and learner."""

import math
from dataclasses import replace

import pytest
import torch

from lydite.config import UserError
from lydite.objective.objective import Objective
from lydite.train.evaluate import Prompt, SamplingConfig, evaluate
from lydite.train.learner import UpdateConfig
from lydite.train.rl import RLParts, RLTrainer
from lydite.train.rl_config import RLConfig
from lydite.train.scored import reward_parts
from lydite.types import Completion, Group, Message, Outcome, Problem, SamplingParams, Verdict


class FakeEngine:
    """Completion ``i`` of a problem is ``i + 1`` tokens long; the longest is cut off."""

    def __init__(self):
        self.version = 0
        self.steps = []
        self.asked = []

    def generate(self, requests):
        self.steps += [r.step for r in requests]
        self.asked += [(r.problem_id, r.step, r.first_sample) for r in requests]
        return [[self._one(r, i) for i in range(r.samples)] for r in requests]

    def _one(self, request, i):
        n = i + 1
        finish = "length" if i == request.samples - 1 else "stop"
        return Completion(
            request.problem_id, i, request.prompt_ids, (7,) * n, (-0.5,) * n, (1,) * n, finish,
            f"{request.problem_id}/{i}", (self.version, self.version),
        )  # fmt: skip


class FakeVerifier:
    """Reads the reward of sample ``i`` of problem ``p`` off a table; None is ungradable."""

    def __init__(self, table):
        self.table = table

    def verify(self, problems, texts):
        found = []
        for problem, text in zip(problems, texts, strict=True):
            reward = self.table[problem.id][int(text.split("/")[1])]
            outcome = (
                Outcome.UNGRADABLE
                if reward is None
                else Outcome.CORRECT
                if reward > 0
                else Outcome.WRONG
            )
            found.append(Verdict(outcome, reward, parts={"table": reward}, detail="from the table"))
        return found

    def close(self):
        pass


class FakeLearner:
    def __init__(self):
        self.batches = []
        self.objectives = []
        self.refreshed = []

    def update(self, batch, objective, progress):
        self.batches.append(batch)
        self.objectives.append(objective)
        return {"loss": 0.0}

    def refresh_reference(self):
        self.refreshed.append(len(self.batches))

    def state_tensors(self):
        return {}

    def load_state_tensors(self, tensors):
        pass


def trainer(table, objective="grpo", prompts=None, size=4, earlier=0, **fakes):
    """``fakes``: another verifier, ``fail_rate``, ``weights``."""
    problems = [Problem(name, name, (Message("user", name),), reference="1") for name in table]
    config = RLConfig(
        steps=5, prompts_per_step=prompts or len(table), group_size=size, objective=objective,
        sampling=SamplingConfig(max_tokens=10),
    )  # fmt: skip
    parts = RLParts(
        FakeEngine(),
        fakes.get("verifier", FakeVerifier)(table),
        FakeLearner(),
        config.build_objective(),
        fakes.get("fail_rate", 0.5),
        fakes.get("weights", {}),
        sync=fakes.get("sync"),
    )
    shown = [Prompt(p, (1, 2)) for p in problems]
    return RLTrainer(config, parts, shown, seed=0, earlier=earlier), parts


def advantages(batch):
    return sorted([round(s.advantage, 3) for s in g.sequences] for g in batch.groups)


def test_advantages_are_relative_to_the_group():
    rl, parts = trainer({"a": [1, 0, 0, 0], "b": [1, 1, 0, 0]})
    result = rl.step(0)
    assert advantages(parts.learner.batches[0]) == [
        [1.0, 1.0, -1.0, -1.0],
        [1.732, -0.577, -0.577, -0.577],
    ]
    assert result.metrics["reward"] == pytest.approx(3 / 8)
    assert result.metrics["length"] == 2.5
    assert result.metrics["entropy"] == pytest.approx(0.5)
    assert result.metrics["entropy_sampled"] == pytest.approx(0.5)
    assert result.metrics["truncated"] == 0.25
    assert parts.engine.version == 1


def test_an_undecided_completion_is_in_no_statistic_and_not_in_the_batch():
    rl, parts = trainer({"a": [1, None, 0, None]})
    result = rl.step(0)
    assert advantages(parts.learner.batches[0]) == [[1.0, -1.0]]
    assert [len(s.token_ids) for s in parts.learner.batches[0].groups[0].sequences] == [1, 3]
    assert result.metrics["reward"] == 0.5
    assert result.metrics["outcome_ungradable"] == 0.5
    assert [row.reward for row in result.samples] == [1, None, 0, None]


def test_too_many_undecided_stop_the_run_and_say_why():
    rl, _ = trainer({"a": [1, None, None, None]})
    with pytest.raises(UserError, match=r"3 of 4 verdicts could not be decided.*from the table"):
        rl.step(0)


def test_a_single_undecided_verdict_does_not_stop_a_small_run():
    rl, parts = trainer({"a": [1, None, 0, 0]}, fail_rate=0.1)
    rl.step(0)
    assert parts.engine.version == 1


def test_dynamic_sampling_draws_on_and_says_what_it_left():
    table = {"a": [1, 1, 1, 1], "b": [1, 0, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 0, 0]}
    rl, parts = trainer(table, "grpo+dynamic_sampling", prompts=2)
    result = rl.step(0)
    assert len(parts.learner.batches[0].groups) == 2
    assert result.metrics["rounds"] > 1
    assert not result.warnings
    untrained = {row.problem_id for row in result.samples if row.advantage is None}
    assert untrained <= {"a", "c"} and untrained
    assert set(parts.engine.steps) == {0}


def test_dynamic_sampling_that_finds_too_little_warns_and_goes_on():
    rl, parts = trainer({"a": [1, 1, 1, 1], "b": [0, 0, 0, 0]}, "grpo+dynamic_sampling")
    result = rl.step(0)
    assert not parts.learner.batches and parts.engine.version == 0
    ((code, message),) = result.warnings
    assert code == "too_few_informative_groups"
    assert "all right" in message and "all wrong" in message and "10 rounds" in message


def test_without_a_filter_idle_groups_stay_in_the_batch():
    rl, parts = trainer({"a": [1, 1, 1, 1], "b": [1, 0, 0, 0]})
    result = rl.step(0)
    assert len(parts.learner.batches[0].groups) == 2
    assert result.metrics["informative_groups"] == 0.5


def test_truncated_completions_leave_the_loss_but_not_the_baseline():
    rl, parts = trainer({"a": [1, 0, 0, 0]}, "grpo+mask_truncated")
    rl.step(0)
    assert advantages(parts.learner.batches[0]) == [[1.732, -0.577, -0.577]]


def test_overlong_answers_are_punished_before_advantages():
    rl, parts = trainer({"a": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}, "dr_grpo+soft_overlong", size=10)
    rl.step(0)
    # A limit of 10 with a cache of 2: lengths 9 and 10 lose 0.5 and 1; the mean reward is 0.85.
    assert advantages(parts.learner.batches[0]) == [[0.15] * 8 + [-0.35, -0.85]]


def test_a_batchs_deviation_is_taken_over_all_groups():
    rl, parts = trainer({"a": [1, 0, 0, 0], "b": [0, 0, 0, 0]}, "grpo+batch_std")
    rl.step(0)
    centred = torch.tensor([0.75, -0.25, -0.25, -0.25, 0, 0, 0, 0])
    wanted = Objective.parse("grpo+batch_std").advantages(
        torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]])
    )
    found = [s.advantage for g in parts.learner.batches[0].groups for s in g.sequences]
    assert sorted(found) == pytest.approx(sorted(wanted.flatten().tolist()))
    assert max(found) > 0.75 / centred.std() * 0.8


def test_an_engine_with_weights_of_its_own_is_told_after_each_update_and_after_a_checkpoint():
    told = []
    rl, parts = trainer({"a": [1, 0, 0, 0]}, sync=told.append)
    metrics = [rl.step(step).metrics for step in range(2)]
    assert told == [1, 2] and parts.engine.version == 2
    assert all("seconds_sync" in each for each in metrics)
    again, others = trainer({"a": [1, 0, 0, 0]}, sync=told.append)
    again.load({}, rl.state())
    assert told == [1, 2, 2] and others.engine.version == 2


def test_a_resumed_trainer_draws_what_the_first_would_have_drawn():
    table = {name: [1, 0, 0, 0] for name in "abcdefg"}
    straight, _ = trainer(table, prompts=2)
    results = [straight.step(i) for i in range(4)]
    first, _ = trainer(table, prompts=2)
    for i in range(2):
        first.step(i)
    second, parts = trainer(table, prompts=2)
    second.load({}, first.state())
    again = [second.step(i) for i in (2, 3)]
    assert [[r.problem_id for r in x.samples] for x in again] == [
        [r.problem_id for r in x.samples] for x in results[2:]
    ]
    assert parts.engine.version == 4


def test_group_of_one_is_refused_with_a_group_baseline():
    with pytest.raises(ValueError, match="group size: 1"):
        trainer({"a": [1]}, size=1)


def test_nan_rewards_never_reach_the_samples_file():
    rl, _ = trainer({"a": [None, 1, 0, 1]})
    rows = rl.step(0).samples
    assert not any(isinstance(r.reward, float) and math.isnan(r.reward) for r in rows)


def test_a_baseline_that_weighs_by_length_is_given_lengths():
    # completions of 1, 2, 3 and 4 tokens: (1·1 + 4·1)/10
    rl, parts = trainer({"a": [1, 0, 0, 1]}, "opo")
    rl.step(0)
    assert advantages(parts.learner.batches[0]) == [[0.5, -0.5, -0.5, 0.5]]


class PartsVerifier(FakeVerifier):
    """The table's reward, and ten for style on even samples."""

    def verify(self, problems, texts):
        found = super().verify(problems, texts)
        for i, verdict in enumerate(found):
            style = 10.0 * (i % 2)
            whole = None if verdict.reward is None else verdict.reward + 0.5 * style
            parts = {"answer": verdict.reward, "style": style}
            found[i] = replace(verdict, reward=whole, parts=parts)
        return found


def test_gdpo_standardises_each_part_and_weighs_it():
    table = {"a": [1, 0, 0, 0], "b": [1, None, 0, 0]}
    rl, parts = trainer(table, "gdpo", verifier=PartsVerifier, weights={"style": 0.5})
    rl.step(0)
    table = torch.tensor([[1.0, 0, 0, 0], [1, math.nan, 0, 0]], dtype=torch.float64)
    style = torch.tensor([[0.0, 10, 0, 10], [0, math.nan, 0, 10]], dtype=torch.float64)
    expected = Objective.parse("gdpo").advantages(
        torch.stack([table, style], dim=2), weights=[1.0, 0.5]
    )
    rows = sorted([[x for x, r in zip(*pair, strict=True) if not math.isnan(r)]
                   for pair in zip(expected.tolist(), table.tolist(), strict=True)])  # fmt: skip
    found = sorted([s.advantage for s in g.sequences] for g in parts.learner.batches[0].groups)
    assert [len(row) for row in found] == [len(row) for row in rows]
    for ours, theirs in zip(found, rows, strict=True):
        assert ours == pytest.approx(theirs)


def test_what_a_part_is_made_of_counts_with_it_and_what_does_not_apply_adds_nothing():
    problem = Problem("a", "q", ())
    parts = [
        {"gate": 1.0, "gate.math": 1.0, "gate.math.x": None, "style": None},
        {"gate": None, "gate.math": None, "style": 2.0},
    ]
    verdicts = [Verdict(Outcome.CORRECT, 1.0, parts=parts[0]),
                Verdict(Outcome.CRASHED, None, parts=parts[1])]  # fmt: skip
    group = Group(problem, [], verdicts)
    penalty = torch.tensor([[0.0, -0.5]])
    values, weights = reward_parts([group], {"style": 0.25}, penalty)
    assert weights == [1.0, 0.25, 1.0]
    assert values[0, 0].tolist() == [1.0, 0.0, 0.0]
    assert values[0, 1, :2].isnan().all() and values[0, 1, 2] == -0.5


def test_gdpo_takes_a_verifier_of_one_number():
    rl, parts = trainer({"a": [1, 0, 0, 0]}, "gdpo", verifier=OneNumber)
    rl.step(0)
    assert advantages(parts.learner.batches[0]) == [[1.732, -0.577, -0.577, -0.577]]


class OneNumber(FakeVerifier):
    def verify(self, problems, texts):
        return [replace(v, parts={}) for v in super().verify(problems, texts)]


def test_no_two_draws_of_a_problem_share_their_noise():
    rl, parts = trainer({"a": [1, 0, 0, 0] * 9, "b": [1, 0, 0, 0] * 9}, prompts=3)
    for step in range(5):
        rl.step(step)
    assert len(parts.engine.asked) == 15
    assert len(set(parts.engine.asked)) == 15


def test_evaluation_leaves_out_what_could_not_be_judged():
    problems = [Problem(n, n, (Message("user", n),)) for n in ("a", "b", "c")]
    table = {"a": [1, None], "b": [0, 1], "c": [None, None]}
    prompts = [Prompt(p, (1, 2)) for p in problems]
    result = evaluate("t", prompts, FakeEngine(), FakeVerifier(table), SamplingParams(4), 2)
    assert result.scores == {"a": [1.0], "b": [0.0, 1.0], "c": []}
    assert result.undecided == 3
    assert result.interval.n == 2 and result.interval.mean == pytest.approx(0.75)


def test_greedy_training_is_refused_when_the_recipe_is_read():
    with pytest.raises(ValueError, match=r"sampling\.temperature: 0 draws"):
        RLConfig(sampling=SamplingConfig(temperature=0))


def test_a_second_stage_on_the_same_problems_has_other_noise_in_another_order():
    table = {name: [1, 0, 0, 0] for name in "abcdefgh"}
    asked = []
    for earlier in (0, 1):
        rl, parts = trainer(table, earlier=earlier)
        rl.step(0)
        asked.append(parts.engine.asked)
    assert not set(asked[0]) & set(asked[1])
    assert [name for name, *_ in asked[0]] != [name for name, *_ in asked[1]]


def drawn(result):
    return sorted({row.problem_id for row in result.samples})


def test_solved_prompts_are_drawn_no_more_and_the_stage_ends_with_the_last():
    table = {"a": [1, 1, 1, 1], "b": [1, 1, 1, 0], "c": [0, 0, 0, 0]}
    rl, _ = trainer(table, "grpo+retire_solved")
    first = rl.step(0)
    assert drawn(first) == ["a", "b", "c"] and first.metrics["retired"] == 1
    assert first.warnings == [
        (
            "few_left",
            "2 of 3 problems are left, the others are solved and retired; a step of 3 prompts now "
            "draws some of them more than once",
        )
    ]
    second = rl.step(1)
    assert drawn(second) == ["b", "c"] and not second.warnings
    table["b"] = [1, 1, 1, 1]
    assert rl.step(2).metrics["retired"] == 2
    assert drawn(rl.step(3)) == ["c"] and not rl.finished
    table["c"] = [1, 1, 1, 1]
    ((code, message),) = rl.step(4).warnings
    assert code == "all_retired" and rl.finished
    assert message == (
        "all 3 problems are solved and retired, so the stage ends after step 5 of 5; "
        "give it harder problems to go on"
    )


def test_an_undecided_verdict_never_retires_a_prompt():
    rl, _ = trainer({"a": [1, 1, 1, None], "b": [1, 1, 0, 0]}, "grpo+retire_solved")
    assert rl.step(0).metrics["retired"] == 0
    assert drawn(rl.step(1)) == ["a", "b"]


def test_nothing_is_retired_unless_asked():
    rl, _ = trainer({"a": [1, 1, 1, 1]})
    assert "retired" not in rl.step(0).metrics and not rl.finished


def test_dynamic_sampling_of_prompts_that_are_all_solved_ends_the_stage():
    rl, parts = trainer({"a": [1] * 4, "b": [1] * 4}, "dapo+retire_solved")
    result = rl.step(0)
    assert [code for code, _ in result.warnings] == ["too_few_informative_groups", "all_retired"]
    assert rl.finished and not parts.learner.batches
    # A prompt that is solved is not drawn again in the same step.
    assert sorted(name for name, *_ in parts.engine.asked) == ["a", "b"]
    assert (result.metrics["rounds"], result.metrics["retired"]) == (1, 2)


def test_dynamic_sampling_goes_on_with_what_is_not_solved():
    table = {"a": [1] * 4, "b": [1, 0, 0, 0], "c": [1] * 4, "d": [0] * 4}
    rl, parts = trainer(table, "dapo+retire_solved", prompts=4)
    rl.step(0)
    asked = [name for name, *_ in parts.engine.asked]
    assert asked.count("a") == asked.count("c") == 1 and set(asked[4:]) == {"b", "d"}
    assert len(parts.learner.batches[0].groups) == 4


def test_an_entropy_bonus_follows_the_sampled_entropy():
    # What is sampled has log-probability -0.5.
    adaptive = {"patches": "adaptive_entropy", "entropy_bonus": {"target": 0.6, "step": 0.002}}
    rl, parts = trainer({"a": [1, 0, 0, 0]}, adaptive)
    course = [rl.step(step).metrics for step in range(4)]
    assert [m["entropy_coefficient"] for m in course] == pytest.approx([0, 0.002, 0.004, 0.005])
    assert [m["entropy_bonus"] for m in course] == pytest.approx([0, 0.002, 0.004, 0.005])
    used = [objective.entropy_bonus.coefficient for objective in parts.learner.objectives]
    assert used == [m["entropy_bonus"] for m in course]
    resumed, _ = trainer({"a": [1, 0, 0, 0]}, adaptive)
    resumed.load({}, rl.state())
    assert resumed.step(4).metrics["entropy_coefficient"] == 0.005

    calm, parts = trainer({"a": [1, 0, 0, 0]}, {**adaptive, "entropy_bonus.target": 0.4,
                                                "entropy_bonus.coefficient": 0.003})  # fmt: skip
    course = [calm.step(step).metrics for step in range(3)]
    assert [m["entropy_coefficient"] for m in course] == pytest.approx([0.003, 0.001, 0])
    assert not any(objective.needs_entropy for objective in parts.learner.objectives)


def test_a_fixed_entropy_bonus_is_the_same_in_every_step():
    rl, parts = trainer({"a": [1, 0, 0, 0]}, "grpo+entropy_bonus")
    assert "entropy_coefficient" not in rl.step(0).metrics
    assert parts.learner.objectives == [parts.objective]


def test_the_reference_is_renewed_before_every_nth_step_but_the_first():
    spec = {"preset": "grpo", "kl": {"coefficient": 0.1, "refresh": 2}}
    rl, parts = trainer({"a": [1, 0, 0, 0]}, spec)
    for step in range(5):
        rl.step(step)
    assert parts.learner.refreshed == [2, 4]


@pytest.mark.parametrize(("refresh", "reached"), [(4, True), (5, False), (400, False)])
def test_a_reference_that_a_stage_never_renews_is_said_once(refresh, reached):
    spec = {"preset": "grpo", "kl": {"coefficient": 0.1, "refresh": refresh}}
    rl, _ = trainer({"a": [1, 0, 0, 0]}, spec)  # of 5 steps
    codes = [code for step in range(2) for code, _ in rl.step(step).warnings]
    assert codes == ([] if reached else ["reference_never_renewed"])


@pytest.mark.parametrize(
    ("objective", "epochs", "codes"),
    [
        ("rloo", 2, ["off_policy_without_ratio"]),
        ("rloo", 1, []),
        ("grpo", 2, []),
        ("grpo+kl_cov", 1, ["token_filter_idle"]),
        ("grpo+kl_cov", 2, []),
        ("grpo+high_entropy_tokens", 1, []),
    ],
)
def test_what_never_comes_to_bear_in_a_stage_is_said_once(objective, epochs, codes):
    rl, _ = trainer({"a": [1, 0, 0, 0]}, objective)
    rl.config = rl.config.model_copy(update={"update": UpdateConfig(epochs=epochs)})
    assert [code for code, _ in rl.step(0).warnings] == codes
    assert not rl.step(1).warnings


def test_a_step_without_anything_to_train_on_says_so():
    dropped, parts = trainer({"a": [1] * 4, "b": [0] * 4}, "grpo+drop_zero_variance")
    ((code, message),) = dropped.step(0).warnings
    assert code == "nothing_to_train" and not parts.learner.batches
    assert message.startswith(
        "0 informative groups of 2 in 1 round; dropped: 1 all right, 1 all wrong; nothing is left"
    )
    some, _ = trainer({"a": [1] * 4, "b": [1, 0, 0, 0]}, "grpo+drop_zero_variance")
    assert not some.step(0).warnings
    cut_off, parts = trainer({"a": [None, None, None, 1]}, "grpo+mask_truncated", fail_rate=0.9)
    ((code, message),) = cut_off.step(0).warnings
    assert code == "nothing_to_train" and "raise sampling.max_tokens" in message
    assert not parts.learner.batches


class JudgingLearner(FakeLearner):
    """Gives token ``t`` the advantage ``reward + t``."""

    def judge(self, batch, objective):
        groups = [
            replace(g, sequences=[
                replace(s, advantage=[s.advantage + t for t in range(len(s.token_ids))])
                for s in g.sequences
            ])
            for g in batch.groups
        ]  # fmt: skip
        return replace(batch, groups=groups), {"explained_variance": 0.5}


def test_a_critics_advantages_reach_the_learner_and_their_means_the_samples():
    rl, parts = trainer({"a": [1, None, 0, 1], "b": [0, 0, 0, 0]}, "ppo")
    rl._parts = replace(parts, learner=JudgingLearner())
    result = rl.step(0)
    (batch,) = rl._parts.learner.batches
    found = sorted([s.advantage for s in g.sequences] for g in batch.groups)
    # the group without a signal is judged as any other
    assert found == [
        [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]],
        [[1], [0, 1, 2], [1, 2, 3, 4]],
    ]
    means = {(row.problem_id, row.sample): row.advantage for row in result.samples}
    assert [means["a", i] for i in range(4)] == [1, None, 1, 2.5]
    assert [means["b", i] for i in range(4)] == [0, 0.5, 1, 1.5]
    assert result.metrics["explained_variance"] == 0.5
