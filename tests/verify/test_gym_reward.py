"""reasoning-gym's scorers: every dataset of it, and answers that want more than to be scored."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sandboxes import BACKENDS, inhabitants, usable
from typer.testing import CliRunner

from lydite.cli.main import app
from lydite.config import UserError, validate
from lydite.tasks.sources import gym_problems
from lydite.types import Outcome, Problem
from lydite.verify import VerifierConfig, build
from lydite.verify.base_config import PoolLimits
from lydite.verify.gym import reward as gym_reward
from lydite.verify.gym.config import GymConfig
from lydite.verify.gym.reward import GymReward
from lydite.verify.sandbox import Sandbox, SandboxLimits

if importlib.util.find_spec("reasoning_gym") is None:
    pytest.skip("reasoning-gym is not installed", allow_module_level=True)

from reasoning_gym.factory import DATASETS

WITHOUT_ORACLE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
EVALUATED = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
PARSED = ("countdown", "puzzle24", "polynomial_multiplication", "simple_integration",
          "intermediate_integration")  # fmt: skip
FORGED = (  # what pays where answers are run: checked by taking the guards away
    "setattr(__import__('json'), 'dumps', lambda said, dumps=__import__('json').dumps: "
    "dumps({**said, 'found': [{'junk': 0, 'score': 9}]}))"
)
SMALL = {"zebra_puzzles": {"num_people": 3, "num_characteristics": 3}}


@pytest.fixture(scope="module")
def problems() -> dict[str, Problem]:
    """One of every dataset."""
    usable("bubblewrap").close()
    names = sorted(set(DATASETS) - {"composite"})
    return {name: gym_problems(name, SMALL.get(name, {}), 1, 5)[0] for name in names}


def made(config: GymConfig | None = None, workers: int = 2) -> GymReward:
    given = config or GymConfig(answer="tag")
    return GymReward(given, "gym", PoolLimits(workers=workers))


@pytest.fixture(scope="module")
def reward(problems: dict[str, Problem]) -> Iterator[GymReward]:
    found = made()
    yield found
    found.close()


def paid(reward: GymReward, problem: Problem, *answers: str) -> list[float | None]:
    texts = [f"<think>so</think><answer>{answer}</answer>" for answer in answers]
    return [score.reward for score in reward.score([problem] * len(texts), texts)]


def test_every_dataset_takes_its_own_answers(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    faults = reward.check_golds(list(problems.values()))
    assert {n: fault for n, fault in zip(problems, faults, strict=True) if fault} == {}
    assert {n for n, each in problems.items() if each.reference is None} == WITHOUT_ORACLE


def test_no_dataset_takes_what_is_no_answer(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    answers = ("zzz", "nan", FORGED)
    asked = [problem for problem in problems.values() for _ in answers]
    scores = reward.score(asked, [f"<answer>{a}</answer>" for a in answers] * len(problems))
    taken = {
        problem.tag: score
        for problem, score in zip(asked, scores, strict=True)
        if (score.outcome, score.reward) != (Outcome.WRONG, 0.0)
    }
    assert taken == {}


def test_an_answer_through_the_reward_is_paid_as_the_scorer_says(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    # Of each kind of scorer one: equal text, tuples in the metadata, a grid, an expression.
    for name in ("chain_sum", "rearc", "sudoku", "countdown", "complex_arithmetic"):
        problem = problems[name]
        assert problem.reference is not None
        assert paid(reward, problem, problem.reference) == [1.0], name
    assert paid(reward, problems["complex_arithmetic"], " -5+20i", "-5+19i") == [1.0, 0.0]


@pytest.mark.parametrize("name", [*EVALUATED, *PARSED])
def test_an_answer_is_not_run(reward: GymReward, problems: dict[str, Problem], name: str) -> None:
    answers = (
        f"[{FORGED}]",
        f'eval("{FORGED}")',
        "[].__class__.__base__.__subclasses__()",
        "open('/etc/passwd').read()",
        "exit()",
    )
    assert paid(reward, problems[name], *answers) == [0.0] * 5
    if name != "intermediate_integration":  # whose reference restates its problem here
        assert paid(reward, problems[name], problems[name].reference or "") == [1.0]


def test_restating_an_integral_is_no_answer(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    problem = problems["simple_integration"]
    integrand = problem.fields["metadata"]["integrand"]  # type: ignore[index]
    variable = problem.fields["metadata"]["variable"]  # type: ignore[index]
    assert paid(reward, problem, f"Integral({integrand}, {variable})") == [0.0]


def test_a_scorer_that_takes_anything_is_held_to_the_reference(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    problem = problems["game_of_life_halting"]
    right, wrong = ("True", "False") if problem.reference == "True" else ("False", "True")
    assert paid(reward, problem, right, right.lower() + ".", wrong, "maybe") == [1.0, 1.0, 0.0, 0.0]
    lost = replace(problem, reference=None)
    score = reward.score([lost], ["<answer>True</answer>"])[0]
    assert score.reward in (0.0, None)


@pytest.mark.parametrize(
    "answer", ["nan", "-NaN", "nan+nanj", "inf", "(nan)", "1+infi", "Infinity", "n an", "( n\tan )"]
)
def test_numbers_that_are_not_finite_are_no_answer(
    reward: GymReward, problems: dict[str, Problem], answer: str
) -> None:
    assert paid(reward, problems["complex_arithmetic"], answer) == [0.0]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("gsm_symbolic", ("{0} or {0}1", "not {0}", "{0}\n1{0}")),
        ("knights_knaves", ("{0} or {0}1", "not {0}", "{0} {0}")),
        ("time_intervals", ("{0} or {0}1", "{0}\n1 {0}")),
        ("spell_backward", ("{0} or so", "{0}zzz")),
        ("letter_jumble", ("{0} zzz",)),
        ("sokoban", ("not {0}",)),
        ("survo", ("not {0}",)),
        ("fraction_simplification", ("{0} or {0}1",)),
    ],
)
def test_a_scorer_that_finds_the_answer_in_more_is_not_followed(
    reward: GymReward, problems: dict[str, Problem], name: str, shapes: Sequence[str]
) -> None:
    right = problems[name].reference or ""
    found = paid(reward, problems[name], right, *(shape.format(right) for shape in shapes))
    assert found == [1.0] + [0.0] * len(shapes)


def test_the_beginning_of_a_number_is_not_the_number(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    problem = problems["coin_flip"]
    right = problem.reference or ""
    assert float(right) > 0
    assert paid(reward, problem, right, right + "0", "0", right[:3]) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "reference", "said"),
    [
        ("The answer is $405.", "405", True),
        ("405 apples", "405", True),
        ("405 and 406", "405", False),
        ("405, not 406", "405", False),
        ("it is not 405", "405", False),
        ("1 2\n3 4", "1 2\n3 4", True),
        ("Ann is a knight and Bob is a fool", "Ann is a knight, and Bob is a fool.", True),
        ("So Bob is a fool, Ann is a knight!", "Ann is a knight, and Bob is a fool.", True),
        ("Ann is a knight. Ann is a fool.", "Ann is a knight, and Bob is a fool.", False),
        ("abc abc", "abc", False),
    ],
)
def test_what_says_more(answer: str, reference: str, said: bool) -> None:
    assert gym_reward.says_no_more(answer, reference) is said


def test_answers_to_one_problem_stand_each_for_itself(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    one, other = problems["chain_sum"], problems["lcm"]
    asked = [one] * 20 + [other] + [one] * 2 + [replace(one, reference="0")]
    right = [f"<answer>{problem.reference}</answer>" for problem in asked]
    for at in (0, 5, 19, 20, 22):
        texts = ["<answer>x</answer>", *right][: len(asked)]
        texts[at] = right[at]
        scores = reward.score(asked, [t if n == at else "nothing" for n, t in enumerate(texts)])
        assert [n for n, score in enumerate(scores) if score.reward] == [at]
    assert [score.reward for score in reward.score(asked, right)] == [1.0] * 24
    assert reward.score([], []) == []


def test_words_that_hold_nan_are_words(reward: GymReward, problems: dict[str, Problem]) -> None:
    problem = replace(problems["word_sorting"], reference="nan, banana")
    assert not gym_reward._not_finite("nan, banana") and problem.reference is not None


@pytest.mark.parametrize(
    ("name", "answer"),
    [("prime_factorization", "two × three"), ("game_of_life", "{}"), ("boxnet", "0"),
     ("game_of_life", "[]"), ("rubiks_cube", "\x00"), ("chain_sum", "9" * 5000)],
)  # fmt: skip
def test_an_answer_that_breaks_a_scorer_is_wrong(
    reward: GymReward, problems: dict[str, Problem], name: str, answer: str
) -> None:
    assert paid(reward, problems[name], answer) == [0.0]


def test_partial_marks_pay_only_where_they_are_asked_for(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    problem = problems["chain_sum"]
    padded = f"The answer is {problem.reference}."
    assert paid(reward, problem, padded) == [0.0]
    partial = made(GymConfig(answer="tag", binary=False), workers=1)
    try:
        share = len(problem.reference or "") / len(padded)
        text = f"<answer>{padded}</answer>"
        score = partial.score([problem], [text])[0]
        assert score.outcome is Outcome.WRONG and score.reward == pytest.approx(share)
    finally:
        partial.close()


def test_no_answer_is_the_models_fault(reward: GymReward, problems: dict[str, Problem]) -> None:
    for text in ("", "<answer></answer>", "<think>12", "<answer>" + "1" * 10_001 + "</answer>"):
        score = reward.score([problems["chain_sum"]], [text])[0]
        assert score.outcome is Outcome.UNPARSEABLE and score.reward == 0.0


def test_an_answer_without_end_costs_its_limit_and_no_other(
    problems: dict[str, Problem],
) -> None:
    before = inhabitants()
    limits = SandboxLimits(wall_seconds=0.5, cpu_seconds=10, memory_mb=1024)
    reward = made(GymConfig(answer="tag", per_answer=limits), workers=1)
    problem = problems["puzzle24"]
    endless = "9**9**9**9"
    texts = [f"<answer>{a}</answer>" for a in (endless, problem.reference)]
    try:
        first, second = reward.score([problem] * 2, texts)
    finally:
        reward.close()
    assert (first.outcome, first.reward) == (Outcome.TIMEOUT, 0.0)
    assert second.outcome is Outcome.CORRECT
    assert {each.pid for each in inhabitants()} <= {each.pid for each in before}


def faulty(problem: Problem, **changes: object) -> Problem:
    return replace(problem, fields={**problem.fields, **changes})


def test_a_problem_that_cannot_be_scored_is_named(
    reward: GymReward, problems: dict[str, Problem]
) -> None:
    good = problems["chain_sum"]
    bad: Sequence[tuple[Problem, str]] = [
        (faulty(good, gym=None), "no column gym"),
        (faulty(good, gym="chain_summ"), "no dataset 'chain_summ'"),
        (faulty(good, gym_config="{"), "gym_config is no object"),
        (faulty(good, metadata=[1]), "metadata is no object"),
        (faulty(good, gym_config={"min_terms": -3}), "refuses its settings"),
        (replace(problems["countdown"], reference="1 + 1"), "refuses the reference itself"),
    ]
    faults = reward.check_golds([good, *(problem for problem, _ in bad)])
    assert faults[0] is None
    for fault, (problem, said) in zip(faults[1:], bad, strict=True):
        score = reward.score([problem], ["<answer>1</answer>"])[0]
        assert score.outcome is Outcome.UNGRADABLE and score.reward is None
        for line in (fault, score.detail):
            assert line is not None and said in line and "\n" not in line


def test_a_problem_that_takes_its_sandbox_along_is_named_alone(
    problems: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SandboxLimits(wall_seconds=1.0, cpu_seconds=20, memory_mb=1024, file_mb=1)
    monkeypatch.setattr(gym_reward, "CHECKING", limits)
    monkeypatch.setattr(gym_reward, "CHECKED_TOGETHER", 1)
    good, endless = problems["chain_sum"], replace(problems["puzzle24"], reference="9**9**9**9")
    reward = made(workers=1)
    try:
        faults = reward.check_golds([good, endless, good])
    finally:
        reward.close()
    assert faults == [None, "scoring it took too long", None]


def test_columns_may_be_text(reward: GymReward, problems: dict[str, Problem]) -> None:
    problem = problems["rearc"]
    texts = {key: json.dumps(problem.fields[key]) for key in ("gym_config", "metadata")}
    assert paid(reward, faulty(problem, **texts), problem.reference or "") == [1.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_kinds_of_sandbox_hold_the_library(
    backend: str, problems: dict[str, Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    usable(backend).close()
    monkeypatch.setattr(gym_reward, "Sandbox", lambda slots: Sandbox(backend, slots))  # type: ignore[arg-type]
    reward = made(workers=1)
    try:
        for name in ("countdown", "pool_matrix", "word_ladder"):
            assert paid(reward, problems[name], problems[name].reference or "", "8") == [1.0, 0.0]
    finally:
        reward.close()


def test_without_the_package_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    gym_reward.program.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^gym: needs .* pip install 'lydite\[gym\]'$"):
        build(validate(VerifierConfig, {"rewards": "gym"}))


def test_the_command_takes_it(tmp_path: Path, problems: dict[str, Problem]) -> None:
    rows = []
    for name in ("chain_sum", "graph_color", "game_of_life_halting"):
        problem = problems[name]
        row = {"question": problem.question, "gold": problem.reference, **problem.fields}
        rows.append({**row, "completion": "<answer>zzz</answer>", "expected": False})
        if problem.reference is not None:
            text = f"<answer>{problem.reference}</answer>"
            rows.append({**row, "completion": text, "expected": True})
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    result = CliRunner().invoke(app, ["verify", "--verifier", "gym", "--input", str(path)])
    assert result.exit_code == 0, result.output
    assert "false positives: 0 of 5" in result.output
    assert "false negatives: 0 of 5" in result.output
