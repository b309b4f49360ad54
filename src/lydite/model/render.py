"""From a problem to token ids: what the model sees, exactly, for sampling and for training on an
example.

A training example is the prompt's own ids followed by the ids of the completion: nothing is encoded
across the boundary, so the model is trained behind precisely the prompt that it will be asked to
continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from lydite.config import UserError
from lydite.model.policy import Policy
from lydite.model.thinking import CLOSE, OPEN, prefilled
from lydite.model.tiny_tokenizer import check_encodable
from lydite.types import Message, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rendered = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of an example, and a mask that is 1 on what is learned of it."""


def render_prompt(policy: Policy, problem: Problem) -> tuple[int, ...]:
    """Token ids of the prompt: through the chat template with a generation prompt, or the plain
    text of the turns.

    Raises:
        UserError: the template refuses the messages, the tokenizer has no token for a piece of
            text, or the prompt
            leaves no room for a completion within the policy's context.
    """
    return _prompt_ids(policy, problem, _shown(policy, problem))


def _shown(policy: Policy, problem: Problem) -> str:
    return prompt_text(policy, problem.messages, f"problem {problem.id}", problem.thinking)


def _prompt_ids(policy: Policy, problem: Problem, text: str) -> tuple[int, ...]:
    """:func:`render_prompt` from the prompt's text."""
    ids = _encode_prompt(policy, text)
    if policy.tokenizer.unk_token_id in ids:
        for message in problem.messages:
            check_encodable(policy.tokenizer, message.content, f"problem {problem.id}")
    if len(ids) >= policy.context:
        raise UserError(
            f"problem {problem.id}: its prompt has {len(ids)} tokens and the model's context is "
            f"{policy.context}; raise model.context, or leave the problem out"
        )
    return tuple(ids)


def _encode_prompt(policy: Policy, text: str) -> list[int]:
    tokenizer = policy.tokenizer
    if policy.chat:
        return encode(tokenizer, text)
    ids = encode(tokenizer, text, special=True)
    # Some tokenizers close every text; a prompt is to be continued.
    while ids and ids[-1] == tokenizer.eos_token_id and len(ids) > 1:
        ids.pop()
    return ids


def encode(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = False) -> list[int]:
    """Token ids of a text, with the tokens that the tokenizer puts around one if ``special``.

    The same as calling the tokenizer, which spends several times as long on a short text as
    encoding it takes.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.truncation is not None or backend.padding is not None:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])
    found: list[int] = backend.encode(text, add_special_tokens=special).ids
    return found


def prompt_text(
    policy: Policy,
    messages: Sequence[Message],
    where: str = "prompt",
    thinking: bool | None = None,
) -> str:
    """The prompt as text, as the model sees it; ``thinking`` comes before the policy's own. Raises
    ``UserError`` when the chat template refuses the messages.
    """
    if not policy.chat:
        return "\n\n".join(message.content for message in messages)
    turns = [{"role": m.role, "content": m.content} for m in messages]
    thinking = policy.thinking if thinking is None else thinking
    extra: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    try:
        text = policy.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **extra
        )
    except (TemplateError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where}: the chat template refuses these messages: {reason}") from error
    assert isinstance(text, str)
    return text


def render_conversation(policy: Policy, problem: Problem, completion: str) -> list[Rendered]:
    """Every answer that a conversation teaches: the learned turns of its messages, and
    ``completion``, the last.

    Each is learned behind the prompt that the model will see when it is asked there. Where that
    prompt begins with all of the example before it, to the token, the two are one example with both
    answers in its mask. A template that shows earlier turns differently (without their thinking)
    makes each answer an example of its own.

    Raises:
        UserError: as :func:`render_example`.
    """
    turns = [(problem.messages[:n], m.content) for n, m in enumerate(problem.messages) if m.learned]
    found: list[Rendered] = []
    for messages, answer in (*turns, (problem.messages, completion)):
        asked = problem if messages is problem.messages else replace(problem, messages=messages)
        ids, mask = render_example(policy, asked, answer)
        size = len(found[-1][0]) if found else 0
        if found and ids[:size] == found[-1][0] and not any(mask[:size]):
            mask = (*found.pop()[1], *mask[size:])
        found.append((ids, mask))
    return found


def render_example(policy: Policy, problem: Problem, completion: str) -> Rendered:
    """Token ids of prompt, completion and end token, and a mask that is 1 on the completion and its
    end token.

    Thinking that the chat template has already written into the prompt, opened or empty, is not
    repeated.

    Raises:
        UserError: as :func:`render_prompt`; or prompt and completion together are longer than the
            context.
    """
    shown = _shown(policy, problem)
    prompt = _prompt_ids(policy, problem, shown)
    answer = _behind_prompt(policy, problem, completion, shown)
    if len(prompt) + len(answer) > policy.context:
        raise UserError(
            f"problem {problem.id}: prompt and worked solution have {len(prompt) + len(answer)} "
            "tokens and the "
            f"model's context is {policy.context}; raise model.context, or leave the problem out"
        )
    return (*prompt, *answer), (*[0] * len(prompt), *[1] * len(answer))


def completion_ids(
    policy: Policy, problem: Problem, completion: str, ended: bool = True
) -> tuple[int, ...]:
    """Token ids of a completion and, if it ``ended``, its end token; see :func:`render_example`.

    Raises:
        UserError: the tokenizer has no token for a piece of text.
    """
    opens = policy.chat and completion.lstrip().startswith(OPEN)
    shown = _shown(policy, problem) if opens else ""
    return _behind_prompt(policy, problem, completion, shown, ended)


def _behind_prompt(
    policy: Policy, problem: Problem, completion: str, shown: str, ended: bool = True
) -> tuple[int, ...]:
    """:func:`completion_ids` behind a prompt whose text is known."""
    if policy.chat and completion.lstrip().startswith(OPEN):
        completion = _behind(prefilled(shown), completion, problem.id)
    answer = encode(policy.tokenizer, completion)
    if policy.tokenizer.unk_token_id in answer:
        check_encodable(policy.tokenizer, completion, f"problem {problem.id}, worked solution")
    end = policy.tokenizer.eos_token_id if policy.end_id is None else policy.end_id
    if ended and end is not None:
        answer.append(int(end))
    return tuple(answer)


def _behind(written: str, completion: str, problem: str) -> str:
    """What is left of a completion behind the thinking that its prompt ends in."""
    if not written:
        return completion
    left = completion.lstrip().removeprefix(OPEN)
    if CLOSE in written:
        thought, _, left = left.partition(CLOSE)
        if thought.strip():
            raise UserError(
                f"problem {problem}: its worked solution thinks, and its prompt ends in an empty "
                f"{OPEN}{CLOSE}; set `thinking: true`, the model's or the task's"
            )
    return left.lstrip("\n") if written.endswith("\n") else left


def decode(policy: Policy, ids: Sequence[int]) -> str:
    """Text of a completion: special tokens are kept, but for a stop token at the end."""
    kept = list(ids)
    if kept and kept[-1] in policy.stop_ids:
        kept.pop()
    text = policy.tokenizer.decode(
        kept, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text
