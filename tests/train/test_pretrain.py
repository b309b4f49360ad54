"""Packing: what is in a block, and that it teaches what each document alone would."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, strategies
from tiny_policy import tiny_model

from lydite.model.loading import load_policy
from lydite.train.pretrain import PretrainConfig, PretrainTrainer, document, pack, pieces
from lydite.types import Message, Problem

documents = strategies.lists(strategies.lists(strategies.integers(0, 99), max_size=40), max_size=30)


@given(documents, strategies.integers(2, 20))
def test_every_token_but_a_documents_first_is_predicted_once(texts: list, block: int) -> None:
    blocks = pack(texts, block)
    predicted = sorted(
        pair
        for each in blocks
        for example in each
        for pair in pairwise([*example.prompt_ids, *example.token_ids])
    )
    whole = sorted(pair for text in texts for pair in pairwise(text))
    assert predicted == whole
    assert all(sum(example.tokens for example in each) <= block for each in blocks)
    assert all(sum(example.loss_mask) == len(example.token_ids) for e in blocks for example in e)


def test_documents_that_fit_are_not_cut_and_fill_what_is_left() -> None:
    texts = [[1] * 6, [2] * 3, [3] * 4, [4] * 7, [5] * 10]
    blocks = [sorted(example.tokens for example in each) for each in pack(texts, 10)]
    assert sorted(blocks) == [[3, 7], [4, 6], [10]]
    assert [len(piece) for piece in pieces(range(10), 4)] == [4, 4, 4]
    assert [list(piece) for piece in pieces(range(7), 4)] == [[0, 1, 2, 3], [3, 4, 5, 6]]
    assert pack([[1]], 4) == [] and pack([], 4) == []


def problem(text: str, worked: str | None = None) -> Problem:
    return Problem(text, text, (Message("user", text),), worked=worked)


def test_a_document_is_plain_text_and_its_end() -> None:
    policy = load_policy(tiny_model())
    text = "1+2=3"
    ids = document(policy, problem(text))
    assert ids[-1] == policy.tokenizer.eos_token_id and ids.count(ids[-1]) == 1
    assert policy.tokenizer.decode(ids[:-1]) == text, "no role of a chat around it"
    shown = document(policy, problem(text, worked="3"))
    assert policy.tokenizer.decode(shown).startswith("<bos><user>1+2=3<assistant>3")


def test_packed_documents_teach_what_they_teach_alone() -> None:
    """One step on a block is one step on its documents in a batch: no token sees another document,
    whatever is packed beside it and in whatever order.
    """
    policy = load_policy(tiny_model())
    draw = random.Random(0)
    texts = [[draw.randrange(5, 20) for _ in range(draw.randrange(2, 9))] for _ in range(6)]
    found = []
    for block in (64, 9):
        config = PretrainConfig(steps=1, batch_size=len(pack(texts, block)), block=block)
        trainer = PretrainTrainer(load_policy(tiny_model()), config, pack(texts, block), seed=0)
        trainer.step(0)
        found.append({n: p.detach().clone() for n, p in trainer.policy.model.named_parameters()})
    assert len(pack(texts, 64)) == 1 < len(pack(texts, 9))
    moved = dict(policy.model.named_parameters())
    for name, weight in found[0].items():
        assert weight.sub(found[1][name]).abs().max() < 1e-4, name
    assert any(weight.sub(moved[name]).abs().max() > 1e-5 for name, weight in found[0].items())


def test_steps_count_blocks() -> None:
    config = PretrainConfig(epochs=2, batch_size=2, block=10)
    blocks = pack([[1] * 10] * 7, 10)
    trainer = PretrainTrainer(load_policy(tiny_model()), config, blocks, seed=0)
    assert trainer.total == 7
    assert [len(trainer.batch_at(step)) for step in range(3)] == [2, 2, 2]
    with pytest.raises(ValueError, match="steps and epochs"):
        PretrainConfig()
