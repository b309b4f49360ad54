"""A small tokenizer from a list of tokens, with a chat template: for models that are trained from
nothing.

Text is cut into the longest tokens that match, and decoding joins them again, so a text that the
vocabulary covers comes back as it was. What it does not cover is an error, never an unknown token
in silence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lydite.config import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
ROLES = ("<system>", "<user>", "<assistant>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
SWITCH_TOKENS = (" /think", " /no_think", "\n\n", "\n")
"""What the thinking switch is written with, put behind a vocabulary that asks for it."""
CONTROL = (PAD, BOS, EOS, UNK, *ROLES)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<' + message['role'] + '>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def build_tokenizer(tokens: Sequence[str], context: int | None = None) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary is ``tokens``, with control, role and tag tokens put in front
    where missing.

    Raises:
        UserError: a token is empty or given twice.
    """
    doubled = {token for token in tokens if tokens.count(token) > 1}
    if doubled or "" in tokens:
        raise UserError(
            f"model.vocabulary: {min(doubled) if doubled else ''!r} is empty or given twice"
        )
    missing = [token for token in (*CONTROL, *TAGS) if token not in tokens]
    vocabulary = {token: index for index, token in enumerate([*missing, *tokens])}
    words = [token for token in vocabulary if token not in CONTROL and token not in TAGS]
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(_longest_first(words)), behavior="isolated"
    )
    tokenizer.decoder = decoders.Fuse()
    # Tags are text that a verifier reads: they are not special, so that no decoding leaves them
    # out.
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        extra_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        **({} if context is None else {"model_max_length": context}),
    )


def _longest_first(words: Sequence[str]) -> str:
    ordered = sorted(words, key=len, reverse=True)
    return "|".join(re.escape(word) for word in ordered) or "(?!)"


def check_encodable(tokenizer: PreTrainedTokenizerBase, text: str, where: str) -> None:
    """Refuses text that would become an unknown token.

    Raises:
        UserError: names ``where`` and the first piece of text that no token stands for.
    """
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast)
    for index, token in enumerate(encoding["input_ids"]):
        if token != unknown:
            continue
        start, end = encoding["offset_mapping"][index] if tokenizer.is_fast else (0, len(text))
        if text[start:end] == tokenizer.unk_token:
            continue
        raise UserError(
            f"{where}: the tokenizer has no token for {text[start:end][:40]!r} in {text[:80]!r}"
        )
