"""vLLM beside the learner and beside the local engine, for real. Skipped where it is not installed:
``make test-vllm`` installs it.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

pytest.importorskip("vllm", reason="vllm is not installed; make test-vllm")

from small_vllm import SEED, make_engine, make_policy

from lydite.config import UserError, validate
from lydite.model.saving import save_policy
from lydite.model.scoring import score
from lydite.rollout.colocated import release
from lydite.rollout.engine import EngineConfig
from lydite.rollout.local import LocalEngine
from lydite.rollout.stopping import text_of
from lydite.rollout.vllm import VllmEngine
from lydite.rollout.vllm_start import Served
from lydite.train.learner import Learner, UpdateConfig
from lydite.train.optimizer import OptimizerConfig
from lydite.types import (
    InterruptibleEngine,
    Request,
    SamplingParams,
    StreamingEngine,
    ThinkingBudget,
)

CLOSE = 2e-4
"""Nats between two float32 programs of two layers."""
WAYS = [
    SamplingParams(12),
    SamplingParams(12, temperature=0.7),
    SamplingParams(12, temperature=0.7, top_p=0.8),
    SamplingParams(12, temperature=1.3, top_k=5, min_p=0.05),
    SamplingParams(12, temperature=0.0),
    SamplingParams(12, temperature=0.0, top_p=0.5),
]


def ask(params, samples=3, count=3):
    return [Request(f"q{i}", (7 + i, 8, 9, 10), samples, params, step=2) for i in range(count)]


def flat(found):
    return [completion for group in found for completion in group]


@torch.no_grad()
def learned(policy, completion, temperature):
    """What the learner says of a completion's tokens."""
    ids = [[list(completion.token_ids)]]
    return score(policy, [list(completion.prompt_ids)], ids, temperature or 1.0)[0][0].tolist()


def worst(policy, found, temperature):
    return max(
        abs(a - b)
        for c in flat(found)
        for a, b, bit in zip(c.logprobs, learned(policy, c, temperature), c.loss_mask, strict=True)
        if bit
    )


def test_log_probabilities_are_the_learners_in_every_way_to_sample(policy, engine):
    for params in WAYS:
        found = engine.generate(ask(params))
        assert worst(policy, found, params.temperature) < CLOSE, params


def test_several_ways_in_one_call(policy, engine):
    requests = [ask(params, count=1)[0] for params in WAYS]
    for request, group in zip(requests, engine.generate(requests), strict=True):
        assert [c.sample for c in group] == [0, 1, 2]
        assert worst(policy, [group], request.params.temperature) < CLOSE, request.params


def test_after_an_update_it_samples_with_the_new_weights(policy, engine, train):
    before = engine.generate(ask(WAYS[0]))
    train(policy)
    assert worst(policy, before, 1.0) > 0.1, "the update is too small to be seen"
    learner = Learner(policy, OptimizerConfig(), UpdateConfig())
    engine.load_weights(learner.weights(), 5)
    after = engine.generate(ask(WAYS[0]))
    assert worst(policy, after, 1.0) < CLOSE
    assert {c.versions for c in flat(after)} == {(5, 5)}


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_its_own_or_the_embeddings(tied, train):
    init = {**make_policy().model.config.to_dict(), "tie_word_embeddings": tied}
    keep = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "initializer_range", "tie_word_embeddings")  # fmt: skip
    policy = make_policy(init={name: init[name] for name in keep})
    engine = make_engine(policy)
    train(policy)
    engine.refresh(1)
    assert worst(policy, engine.generate(ask(WAYS[0])), 1.0) < CLOSE


def test_weights_by_way_of_a_folder(policy, engine, train, monkeypatch):
    """As where vLLM's model is in other processes."""
    monkeypatch.setattr(engine, "_by_folder", True)
    train(policy)
    engine.refresh(1)
    assert worst(policy, engine.generate(ask(WAYS[0])), 1.0) < CLOSE


def test_a_prompt_that_was_cached_is_run_again_with_new_weights(policy, engine, train):
    # Longer than a block of the cache (128 tokens on a CPU), so its keys would be found there.
    prompt = tuple(7 + i % 20 for i in range(200))
    request = Request("long", prompt, 2, SamplingParams(8))
    engine.generate([request])
    train(policy)
    engine.refresh(1)
    assert worst(policy, engine.generate([request]), 1.0) < CLOSE


def test_an_engine_that_was_not_told_of_an_update_says_so(policy, engine):
    engine.version = 1
    with pytest.raises(UserError, match=r"weights of version 0.*asks for samples of version 1"):
        engine.generate(ask(WAYS[0]))
    engine.refresh(1)
    assert len(flat(engine.generate(ask(WAYS[0])))) == 9


def test_greedy_is_the_local_engines(policy, engine):
    ours = LocalEngine(policy, EngineConfig(), SEED).generate(ask(SamplingParams(20, 0.0)))
    theirs = engine.generate(ask(SamplingParams(20, 0.0)))
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert replace(a, logprobs=()) == replace(b, logprobs=())


def test_a_request_asked_again_draws_the_same_and_samples_differ(engine):
    first = engine.generate(ask(WAYS[0]))
    assert engine.generate(ask(WAYS[0])) == first
    assert len({c.token_ids for c in flat(first)}) == 9
    other = [replace(request, step=3) for request in ask(WAYS[0])]
    assert engine.generate(other) != first
    later = [replace(request, first_sample=2, samples=1) for request in ask(WAYS[0])]
    assert [g[0].token_ids for g in engine.generate(later)] == [g[2].token_ids for g in first]


def test_endings(policy, engine):
    stop = ("1A", "o =")
    found = flat(engine.generate(ask(SamplingParams(48, stop=stop), samples=16, count=8)))
    by_string = by_token = cut = 0
    for completion in found:
        text = text_of(policy.tokenizer, completion.token_ids)
        if completion.finish == "length":
            cut += 1
            assert len(completion.token_ids) == 48 and completion.text == text
            assert not any(string in text for string in stop)
        elif completion.token_ids[-1] in policy.stop_ids:
            by_token += 1
            without = text_of(policy.tokenizer, completion.token_ids[:-1])
            assert completion.text == without and without != text
        else:
            by_string += 1
            assert completion.text == text and any(string in text for string in stop)
            before = text_of(policy.tokenizer, completion.token_ids[:-1])
            assert not any(string in before for string in stop)
        assert not policy.stop_ids.intersection(completion.token_ids[:-1])
    assert by_string and by_token and cut, (by_string, by_token, cut)


def test_thinking_budgets_are_kept(policy, engine):
    params = SamplingParams(24, thinking=ThinkingBudget((4,)))
    opened = [policy.tokenizer.convert_tokens_to_ids("<think>")]
    requests = [Request(f"q{i}", (7, 8, *opened), 4, params) for i in range(3)]
    found = engine.generate(requests)
    cuts = 0
    for completion in flat(found):
        assert completion.thought is not None and completion.thought.tokens <= 4
        if completion.thought.cut:
            cuts += 1
            assert completion.loss_mask[:4] == (1,) * 4 and completion.loss_mask[4] == 0
            assert "</think>" in completion.text
        told = zip(completion.logprobs, completion.loss_mask, strict=True)
        assert not any(logprob for logprob, bit in told if not bit)
    assert cuts
    assert worst(policy, found, 1.0) < CLOSE


def test_completions_are_heard_of_as_they_end(engine):
    assert isinstance(engine, StreamingEngine)
    heard, seen = [], []
    requests = [replace(r, params=SamplingParams(4 + 8 * i)) for i, r in enumerate(ask(WAYS[0]))]
    found = engine.stream(
        requests, lambda index, completion: heard.append((index, completion)), seen.append
    )
    assert sorted(heard, key=lambda at: (at[0], at[1].sample)) == [
        (i, c) for i, group in enumerate(found) for c in group
    ]
    assert heard[0][0] == 0 and (seen[-1].finished, seen[-1].total) == (9, 9)
    assert seen[-1].tokens == sum(len(c.token_ids) for c in flat(found))


def test_what_the_listener_raises_ends_the_call_and_not_the_engine(engine):
    def hear(index, completion):
        raise KeyboardInterrupt

    requests = [replace(r, params=SamplingParams(4 + 20 * i)) for i, r in enumerate(ask(WAYS[0]))]
    with pytest.raises(KeyboardInterrupt):
        engine.stream(requests, hear)
    assert len(flat(engine.generate(ask(WAYS[0])))) == 9


def test_what_does_not_fit_is_refused_before_anything_is_sampled(engine):
    with pytest.raises(UserError, match="pass the context of 320"):
        engine.generate(ask(SamplingParams(317)))
    with pytest.raises(UserError, match="top_p: must be"):
        engine.generate(ask(SamplingParams(4, top_p=0.0)))


@pytest.mark.parametrize("how", ["adapter", "merge"])
def test_lora(how, train):
    policy = make_policy(lora={"rank": 4})
    engine = make_engine(policy, vllm={"lora": how})
    assert worst(policy, engine.generate(ask(WAYS[0])), 1.0) < CLOSE
    train(policy)
    engine.load_weights(Learner(policy, OptimizerConfig(), UpdateConfig()).weights(), 1)
    found = engine.generate(ask(WAYS[2]))
    assert worst(policy, found, WAYS[2].temperature) < CLOSE


def test_bfloat16_agrees_to_its_own_precision(train):
    policy = make_policy(dtype="bfloat16")
    engine = make_engine(policy)
    train(policy)
    engine.refresh(1)
    for params in WAYS[:3]:
        found = engine.generate(ask(params))
        gaps = [
            abs(a - b)
            for c in flat(found)
            for a, b in zip(c.logprobs, learned(policy, c, params.temperature), strict=True)
        ]
        # A logit of 4 has a spacing of 1/64 in bfloat16, and the layers before it round too.
        assert sum(gaps) / len(gaps) < 0.05, params


def test_apart_from_a_folder_it_is_handed_weights(tmp_path, policy, train):
    """As a process elsewhere has it: no policy, a folder and the settings."""
    release()
    save_policy(policy, tmp_path / "model")
    served = Served(
        tmp_path / "model", policy.tokenizer, policy.stop_ids, policy.context, torch.float32
    )
    config = validate(EngineConfig, {"kind": "vllm", "cache_gb": 0.2, "max_rows": 16})
    engine = VllmEngine(served, config, SEED, device="cpu")
    try:
        assert worst(policy, engine.generate(ask(WAYS[0])), 1.0) < CLOSE
        shutil.rmtree(tmp_path / "model")
        train(policy)
        weights = [(name, p.detach()) for name, p in policy.model.named_parameters()]
        engine.load_weights(iter(weights), 1)
        assert worst(policy, engine.generate(ask(WAYS[0])), 1.0) < CLOSE
        train(policy)
        engine._by_folder = True  # as where several processes hold the model
        engine.load_weights(iter(weights), 2)
        assert worst(policy, engine.generate(ask(WAYS[0])), 1.0) < CLOSE
    finally:
        engine.close()


def test_a_start_that_takes_too_long_or_fails_is_one_line(policy):
    release()
    with pytest.raises(UserError, match=r"vllm: vLLM does not start: .*quant"):
        make_engine(policy, vllm={"quantization": "of-no-kind"})


def test_interrupted_it_hands_over_what_it_has_of_each_and_goes_on_with_other_calls(policy, engine):
    assert isinstance(engine, InterruptibleEngine)
    short, long, other = SamplingParams(3), SamplingParams(24), SamplingParams(24, top_k=5)
    requests = [Request(f"q{i}", (7 + i, 8, 9), 2, p) for i, p in enumerate((short, long, other))]
    heard = []

    def hear(index, completion):
        heard.append((index, completion.sample))
        engine.interrupt()

    ended, cut, unbegun = engine.stream(requests, hear)
    assert heard and {index for index, _ in heard} == {0}
    assert [c.sample for group in (ended, cut, unbegun) for c in group] == [0, 1] * 3
    assert all(c.finish == "abort" and 0 < len(c.token_ids) < 24 for c in cut)
    assert all(c.finish == "abort" and not c.token_ids for c in unbegun), "another way to sample"
    assert worst(policy, [cut], 1.0) < CLOSE
    assert {c.versions for c in cut} == {(engine.version, engine.version)}
    again = engine.generate(requests)
    assert all(c.finish != "abort" for c in flat(again)), "an interruption is noticed once"
    thinking = replace(long, thinking=ThinkingBudget((4,)))
    engine.interrupt()
    found = engine.generate([Request("t", (7, 8, 9), 2, thinking)])
    assert all(c.finish != "abort" for c in flat(found)), "a call with a budget is not cut"
    engine.interrupt()
    early = engine.generate(requests[1:2])
    assert all(c.finish == "abort" and not c.token_ids for c in flat(early))
