"""From a row of data to a problem: which column is what, and what the model is shown."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from lydite.config import UserError
from lydite.tasks.select import normalise
from lydite.tasks.sources import Row
from lydite.types import Message, Problem, Role

PLACEHOLDERS = re.compile(r"\{(?:question|prompt|problem)\}")
_COLUMN = re.compile(r"\{([^{}]+)\}")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """The settings of a task that say how a row is read; see ``TaskConfig`` for each."""

    prompt: str
    conversation: str | None
    reference: str | None
    reference_marker: str | None
    worked: str | None
    rejected: str | None
    tag: str | None
    id: str | None
    template: str
    system: str | None
    thinking: bool | None

    def wrap(self, problem: Problem) -> Problem:
        """The problem as the model is shown it: template on the last user turn, system prompt in
        front, hard switch.
        """
        *before, last = problem.messages
        text = PLACEHOLDERS.sub(lambda _: last.content, self.template)
        if text == last.content and self.system is None and problem.thinking == self.thinking:
            return problem
        messages = (*before, Message(last.role, text))
        if self.system is not None:
            turns = (m for m in messages if m.role != "system")
            messages = (Message("system", self.system), *turns)
        return replace(problem, messages=messages, thinking=self.thinking)


def to_problem(row: Row, columns: ColumnMap, task: str) -> Problem:
    """A row as a problem.

    Raises:
        UserError: ``file:line: reason`` for a missing column, an empty question, or an unusable
            reference.
    """
    reference = _reference(row, columns)
    extra = {"reference": reference}
    worked, rejected = (
        None if column is None else _answer(row, column, extra)
        for column in (columns.worked, columns.rejected)
    )
    if columns.conversation is None:
        messages = _messages(row, columns.prompt)
    else:
        messages, worked = _conversation(row, columns.conversation)
    question = messages[-1].content
    tag = "" if columns.tag is None else str(_look(row, columns.tag))
    for text in (*(m.content for m in messages), reference, worked, rejected, tag):
        _check_text(row, text)
    named = None if columns.id is None else _plain(row, columns.id, _look(row, columns.id))
    _check_text(row, named)
    # Reward functions get every column by name; `answer` is theirs for the reference as it was
    # read.
    fields = {
        key: value
        for key, value in row.values.items()
        if (key, key) != (columns.reference, "answer")
    }
    answers = (f"\0{answer}" for answer in (worked, rejected) if answer is not None)
    key = normalise("\n".join(m.content for m in messages)) + "".join(answers)
    own = f"{task}-{hashlib.blake2b(key.encode(), digest_size=6).hexdigest()}"
    problem = Problem(named or own, question, messages, reference, tag, worked, fields, rejected)
    return columns.wrap(problem)


def _check_text(row: Row, text: str | None) -> None:
    """Refuses half a surrogate pair, which JSON can spell and no tokenizer or file can hold."""
    half = re.search("[\ud800-\udfff]", text or "")
    if half:
        raise _bad(row, f"not text: a lone surrogate \\u{ord(half[0]):04x}; mend or drop the row")


def _bad(row: Row, reason: str) -> UserError:
    return UserError(f"{row.where}: {reason}")


def _look(row: Row, column: str) -> Any:
    """A column by name, or by a dotted path into nested ones."""
    if column in row.values:
        return row.values[column]
    value: Any = row.values
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise _bad(row, f"no column {column!r}; there are {', '.join(map(repr, row.values))}")
        value = value[part]
    return value


def _text(row: Row, column: str, extra: Mapping[str, str | None]) -> str:
    """A column as text, or a template with every ``{column}`` in it filled."""
    if not _COLUMN.search(column):
        return _plain(row, column, _look(row, column))

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name not in row.values and extra.get(name) is not None:
            return str(extra[name])
        return _plain(row, name, _look(row, name))

    return _COLUMN.sub(fill, column)


def _answer(row: Row, column: str, extra: Mapping[str, str | None]) -> str:
    """A solution: text, a template, or chat messages of which the last is the assistant's, as TRL
    writes preferences.
    """
    value = None if _COLUMN.search(column) else _look(row, column)
    if isinstance(value, list):
        last = value[-1] if value and isinstance(value[-1], Mapping) else {}
        value = last.get("content")
        if last.get("role") != "assistant" or not isinstance(value, str):
            raise _bad(row, f"{column}: the last message must be an assistant's, with text")
    text = value if isinstance(value, str) else _text(row, column, extra)
    if not text.strip():
        raise _bad(row, f"{column}: the worked solution is empty")
    return text


def _messages(row: Row, prompt: str) -> tuple[Message, ...]:
    value = None if _COLUMN.search(prompt) else _look(row, prompt)
    if isinstance(value, list):
        return _chat(row, prompt, value)
    question = _text(row, prompt, {}).strip()
    if not question:
        raise _bad(row, f"{prompt}: the question is empty")
    return (Message("user", question),)


def _chat(row: Row, prompt: str, turns: list[Any]) -> tuple[Message, ...]:
    """A column that holds chat messages, as TRL and verl write them."""
    messages = tuple(_turn(row, prompt, turn) for turn in turns)
    if not messages or messages[-1].role != "user" or not messages[-1].content.strip():
        raise _bad(row, f"{prompt}: the last message must be a user's, and not empty")
    return messages


def _conversation(row: Row, column: str) -> tuple[tuple[Message, ...], str]:
    """A whole conversation: what comes before the last answer to learn, and that answer.

    Every answer is learned but those of ``weight`` 0, as OpenAI's fine-tuning files write it.
    """
    turns = _look(row, column)
    if not isinstance(turns, list):
        raise _bad(row, f"{column}: expected a list of messages, got {type(turns).__name__}")
    messages = [_turn(row, column, turn) for turn in turns]
    if not messages or messages[-1].role != "assistant":
        raise _bad(row, f"{column}: the last message must be the assistant's")
    learned = [n for n, turn in enumerate(turns) if _is_learned(messages[n], turn)]
    if not learned:
        raise _bad(row, f"{column}: every answer has weight 0, so there is nothing to learn")
    for n in learned:
        if n == 0 or messages[n - 1].role != "user":
            raise _bad(row, f"{column}: message {n + 1}, an answer, does not follow a user's")
        if not messages[n].content.strip():
            raise _bad(row, f"{column}: message {n + 1}, an answer, is empty")
    before = (replace(m, learned=n in learned) for n, m in enumerate(messages[: learned[-1]]))
    return tuple(before), messages[learned[-1]].content


def _is_learned(message: Message, turn: Mapping[str, Any]) -> bool:
    weight = turn.get("weight")
    return message.role == "assistant" and (weight is None or bool(weight))


_ROLES: Mapping[object, Role] = {
    **{role: role for role in get_args(Role)},
    "human": "user",
    "gpt": "assistant",
}


def _turn(row: Row, column: str, turn: object) -> Message:
    """A message: ``role`` and ``content``, or ``from`` and ``value`` as ShareGPT writes them.

    An answer's ``reasoning_content`` becomes the thinking in front of it.
    """
    fields = turn if isinstance(turn, Mapping) else {}
    role = _ROLES.get(fields.get("role") or fields.get("from"))
    content = fields.get("content") if "content" in fields else fields.get("value")
    if role is None or not isinstance(content, str):
        raise _bad(
            row, f"{column}: a message needs `role` (system, user, assistant) and text `content`"
        )
    reasoning = fields.get("reasoning_content")
    if role == "assistant" and isinstance(reasoning, str) and reasoning.strip():
        content = f"<think>\n{reasoning.strip()}\n</think>\n\n{content}"
    return Message(role, content)


def _plain(row: Row, column: str, value: Any) -> str:
    """Text and finite numbers as text; ``43.0`` is ``43``."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    kind = "empty (null)" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
    raise _bad(row, f"{column}: expected text or a number, got {kind}")


def _reference(row: Row, columns: ColumnMap) -> str | None:
    if columns.reference is None:
        return None
    text = _plain(row, columns.reference, _look(row, columns.reference))
    marker = columns.reference_marker
    if marker is not None:
        _, found, text = text.rpartition(marker)
        if not found:
            raise _bad(row, f"{columns.reference}: no {marker!r} in it, so no reference after it")
        text = _THOUSANDS.sub("", text)
    if not text.strip():
        raise _bad(row, f"{columns.reference}: the reference is empty")
    return text.strip()
