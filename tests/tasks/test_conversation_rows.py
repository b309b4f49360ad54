"""Columns that hold whole conversations, in the forms that chat data sets have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lydite.config import UserError, validate
from lydite.tasks.select import check_disjoint
from lydite.tasks.task import RowsConfig, TaskConfig, TaskData, load_task, task_of_rows
from lydite.types import Message, Problem

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
]


def load(path: Path, **settings: Any) -> TaskData:
    config = validate(TaskConfig, {"path": str(path), "conversation": "messages", **settings})
    return load_task("chats", config, 0)


def rows(*chats: object) -> TaskData:
    return task_of_rows(
        "chats", [{"messages": chat} for chat in chats], {"conversation": "messages"}
    )


def test_jsonl_and_parquet_hold_the_same_conversation(tmp_path: Path) -> None:
    row = {"messages": CHAT}
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text(json.dumps(row))
    pq.write_table(pa.Table.from_pylist([row]), table)
    assert load(lines).fingerprint == load(table).fingerprint
    (problem,) = load(table).problems
    assert problem.question == "2+2" and problem.worked == "4" and problem.reference is None
    assert problem.messages == (
        Message("system", "Be brief."),
        Message("user", "1+1"),
        Message("assistant", "2", learned=True),
        Message("user", "2+2"),
    )


def test_what_is_learned_is_part_of_the_fingerprint() -> None:
    asked = [*CHAT[:2], {**CHAT[2], "weight": 0}, *CHAT[3:]]
    assert rows(asked).fingerprint != rows(CHAT).fingerprint
    assert not any(m.learned for m in rows(asked).problems[0].messages)


def test_the_last_answer_of_weight_0_and_what_follows_it_are_left_out() -> None:
    (problem,) = rows([*CHAT[:4], {**CHAT[4], "weight": 0}]).problems
    assert problem.worked == "2" and problem.question == "1+1"
    assert len(problem.messages) == 2
    (problem,) = rows([*CHAT[:4], {**CHAT[4], "weight": None}]).problems
    assert problem.worked == "4"


def test_sharegpt_and_reasoning_of_its_own() -> None:
    (problem,) = rows(
        [
            {"from": "human", "value": "1+1"},
            {"from": "gpt", "value": "2"},
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
        ]
    ).problems
    assert [m.content for m in problem.messages] == ["1+1", "2", "2+2"]
    assert problem.worked == "<think>\n2 and 2\n</think>\n\n4"


def test_the_system_prompt_of_the_task_replaces_the_conversations(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": CHAT, "gold": 4}))
    (problem,) = load(path, system="Think.", reference="gold", thinking=False).problems
    assert problem.messages[0] == Message("system", "Think.")
    assert problem.reference == "4" and problem.thinking is False
    assert problem.messages[2].learned


BAD = [
    ([], "messages: the last message must be the assistant's"),
    (CHAT[:-1], "messages: the last message must be the assistant's"),
    ("hi", "messages: expected a list of messages, got str"),
    ([{"role": "tool", "content": "x"}], "messages: a message needs `role`"),
    ([{"role": "user", "content": None}], "messages: a message needs `role`"),
    ([CHAT[1], {"role": "assistant", "content": " "}], "message 2, an answer, is empty"),
    ([CHAT[0], CHAT[2]], "message 2, an answer, does not follow a user's"),
    ([CHAT[2]], "message 1, an answer, does not follow a user's"),
    ([CHAT[1], CHAT[2], CHAT[4]], "message 3, an answer, does not follow a user's"),
    ([CHAT[1], {**CHAT[2], "weight": 0}], "every answer has weight 0"),
    ([CHAT[1], {"role": "assistant", "content": "\ud800"}], "not text: a lone surrogate"),
]


@pytest.mark.parametrize(("chat", "reason"), BAD)
def test_a_bad_conversation_names_its_row(chat: object, reason: str) -> None:
    with pytest.raises(UserError, match=rf"^chats: row 2: .*{reason}"):
        rows(CHAT, chat)


@pytest.mark.parametrize("name", ["prompt", "worked", "rejected", "template"])
def test_what_has_no_effect_beside_a_conversation_is_refused(name: str) -> None:
    value = "{question}?" if name == "template" else "a"
    with pytest.raises(UserError, match=f"{name}: has no effect beside conversation"):
        validate(RowsConfig, {"conversation": "messages", name: value})


def test_a_resolved_task_can_be_read_again() -> None:
    config = validate(TaskConfig, {"path": "a.jsonl", "conversation": "messages"})
    assert validate(TaskConfig, config.model_dump()) == config
    assert validate(TaskConfig, {"path": "a.jsonl"}).reference == "answer"


def test_a_held_out_question_is_found_in_an_earlier_turn() -> None:
    asked = Problem("h", "1+1", (Message("user", "1 + 1"),))
    with pytest.raises(UserError, match="1 held-out questions are also trained on"):
        check_disjoint(rows(CHAT).problems, [asked])
    not_learned = [*CHAT[:2], {**CHAT[2], "weight": 0}, *CHAT[3:]]
    check_disjoint(rows(not_learned).problems, [asked])
