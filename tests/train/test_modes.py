"""Evaluation in modes: what is asked in each, and what counts as obeying."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lydite.config import UserError
from lydite.model.loading import ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.train.evaluate import Answered, Evaluation, Prompt
from lydite.train.modes import evaluate_modes, obedience, thinks
from lydite.types import Completion, Message, Outcome, Problem, Verdict

EMPTY = "<think>\n\n</think>\n\n"
PROBLEMS = [Problem(f"p{n}", str(n), (Message("user", str(n)),), str(n)) for n in range(3)]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def policy(**settings: object) -> Policy:
    values = {
        "path": "init:llama",
        "init": SHAPE,
        "vocabulary": [*"0123456789."],
        "context": 32,
        "thinking_switch": "strip",
        **settings,
    }
    return load_policy(ModelConfig.model_validate(values))


def said(problem: Problem, text: str, finish: str = "stop") -> Answered:
    completion = Completion(problem.id, 0, (1,), (2,), (0.0,), (1,), finish, text)  # type: ignore[arg-type]
    return Answered(Prompt(problem, (1,)), completion, Verdict(Outcome.CORRECT, 1.0))


class Model:
    """Thinks as it is told to; remembers what it was shown."""

    def __init__(self, made: Policy, texts: dict[str, str], finish: str = "stop") -> None:
        self.policy = made
        self.texts = texts
        self.finish = finish
        self.shown: dict[str, list[str]] = {}

    def __call__(self, task: str, prompts: Sequence[Prompt]) -> Evaluation:
        mode = task.split(".")[1]
        decode = self.policy.tokenizer.decode
        assert task not in self.shown
        self.shown[task] = [decode(list(p.token_ids)) for p in prompts]
        text = self.texts.get(mode, "7")
        answers = tuple(said(p.problem, text, self.finish) for p in prompts)
        scores = {p.problem.id: [1.0] for p in prompts}
        return Evaluation(task, scores, answers, 0)


def test_what_is_asked_in_each_mode() -> None:
    made = policy()
    model = Model(made, {"think": "<think>1</think>2", "no_think": f"{EMPTY}3"})
    modes = ("unflagged", "last_no_think", "think", "last_think", "hard_think", "hard_no_think")
    found = evaluate_modes("t", PROBLEMS, modes, made, model)
    assert [e.task for e in found] == [f"t.{mode}" for mode in modes]
    start = "<bos><user>"
    shown = {task: prompts[0] for task, prompts in model.shown.items()}
    assert shown == {
        "t.unflagged": f"{start}0<assistant>",
        "t.think": f"{start}0 /think<assistant>",
        "t.no_think": f"{start}0 /no_think<assistant>",
        "t.hard_think": f"{start}0<assistant>",
        "t.hard_no_think": f"{start}0<assistant>{EMPTY}",
        # The first problem comes after the last one.
        "t.last_no_think": f"{start}2 /think<assistant>2<eos><user>0 /no_think<assistant>",
        "t.last_think": f"{start}2 /no_think<assistant>3<eos><user>0 /think<assistant>",
    }
    assert model.shown["t.last_think"][1].startswith(f"{start}0 /no_think")
    by_task = {e.task: e.obedience for e in found}
    assert by_task == {
        "t.unflagged": 0.0,
        "t.last_no_think": 1.0,
        "t.think": 1.0,
        "t.last_think": 0.0,
        "t.hard_think": 0.0,
        "t.hard_no_think": 1.0,
    }


def test_what_was_cut_off_is_no_earlier_answer() -> None:
    made = policy()
    model = Model(made, {"think": "<think>1111"}, finish="length")
    evaluate_modes("t", PROBLEMS, ["last_no_think"], made, model)
    assert "<user>2 /think<assistant>2<eos>" in model.shown["t.last_no_think"][0]


def test_an_earlier_answer_that_leaves_no_room_gives_way_to_the_gold_one() -> None:
    made = policy(context=16)
    model = Model(made, {"think": "<think>1</think>" + "." * 9})
    evaluate_modes("t", PROBLEMS, ["last_no_think"], made, model)
    assert "<user>2 /think<assistant>2<eos>" in model.shown["t.last_no_think"][0]


def test_obedience_by_hand() -> None:
    made = policy()
    think, fast = (
        Problem(name, "1", (Message("user", f"1 {flag}"),))
        for name, flag in (("a", "/think"), ("b", "/no_think"))
    )
    answers = [
        said(think, "<think>1</think>2"),
        said(think, f"{EMPTY}2"),
        said(think, "2"),
        said(think, "<think>11", "length"),
        said(fast, "<think>1</think>2"),
        said(fast, f"{EMPTY}2"),
        said(fast, "2"),
        said(fast, "<think>\n\n", "length"),
    ]
    kept = [obedience(made, [answer]) for answer in answers]
    assert kept == [1, 0, 0, 1, 0, 1, 1, 1]
    assert obedience(made, answers) == 5 / 8


@pytest.mark.parametrize(
    ("text", "written", "thinking"),
    [
        ("1</think>2", "<think>\n", True),
        ("\n</think>2", "<think>\n", False),
        ("111", "<think>\n", True),
        ("111", EMPTY, False),
        ("111", "", False),
    ],
)
def test_thinking_that_the_prompt_opened(text: str, written: str, thinking: bool) -> None:
    assert thinks(said(PROBLEMS[0], text).completion, written) == thinking


def test_the_hard_switch_needs_a_template_that_has_it() -> None:
    made = policy(thinking_switch=None)
    with pytest.raises(UserError, match="modes: hard_think has no effect"):
        evaluate_modes("t", PROBLEMS, ["unflagged", "hard_think"], made, Model(made, {}))
    with pytest.raises(UserError, match="modes: hard_no_think has no effect"):
        evaluate_modes("t", PROBLEMS, ["hard_no_think"], policy(chat=False), Model(made, {}))
