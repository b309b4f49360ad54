"""The engines against a plain loop over full forwards, on small random models."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lydite.config import UserError
from lydite.model.attention import NAME, backbone
from lydite.model.loading import LoraConfig, ModelConfig, load_policy
from lydite.model.policy import Policy
from lydite.model.probe import supports_flat, why_not_flat
from lydite.model.scoring import score
from lydite.rollout.engine import EngineConfig, Progress
from lydite.rollout.local import LocalEngine
from lydite.rollout.padded import PaddedEngine
from lydite.rollout.select import local_engine
from lydite.types import Completion, Request, SamplingParams

CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 ."
EOS = 1
VOCABULARY = 40


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    ids = {"<pad>": 0, "<eos>": EOS, **{c: i + 2 for i, c in enumerate(CHARACTERS)}}
    inner = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


TOKENIZER = make_tokenizer()
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
    "eos_token_id": None,
    "attn_implementation": NAME,
}


def make_model(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES))
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=12, tie_word_embeddings=True))


MODELS = {kind: make_model(kind) for kind in ("llama", "qwen3")}


def policy_of(kind: str = "llama", stop_ids: frozenset[int] = frozenset({EOS})) -> Policy:
    return Policy(MODELS[kind], TOKENIZER, stop_ids, context=128)


def make_requests(params: SamplingParams, samples: int = 3, count: int = 6) -> list[Request]:
    """Prompts of 1 to 16 tokens."""
    rng = random.Random(0)
    prompts = [[rng.randrange(2, VOCABULARY) for _ in range(1 + 3 * i)] for i in range(count)]
    return [Request(f"p{i}", tuple(ids), samples, params) for i, ids in enumerate(prompts)]


def flatten(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


@contextmanager
def plain_attention(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def plain_logprobs(
    model: PreTrainedModel, completion: Completion, temperature: float
) -> torch.Tensor:
    with torch.no_grad(), plain_attention(model):
        ids = torch.tensor([completion.prompt_ids + completion.token_ids])
        log_p = (model(ids).logits[0].float() / temperature).log_softmax(1)
    predicted = log_p[len(completion.prompt_ids) - 1 : -1]
    return predicted.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1)


def plain_greedy(model: PreTrainedModel, prompt: tuple[int, ...], limit: int) -> tuple[int, ...]:
    ids = list(prompt)
    with torch.no_grad(), plain_attention(model):
        while len(ids) < len(prompt) + limit:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == EOS:
                break
    return tuple(ids[len(prompt) :])


@contextmanager
def counted_forwards(model: PreTrainedModel) -> Iterator[list[int]]:
    """The number of tokens in each run of the backbone."""
    sizes: list[int] = []

    def note(_: object, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        sizes.append(kwargs["input_ids"].numel())

    handle = backbone(model).register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield sizes
    finally:
        handle.remove()


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_greedy_is_what_full_forwards_give(kind: str) -> None:
    policy = policy_of(kind)
    requests = make_requests(SamplingParams(24, temperature=0), samples=2)
    for request, group in zip(requests, LocalEngine(policy).generate(requests), strict=True):
        want = plain_greedy(policy.model, request.prompt_ids, 24)
        assert [completion.token_ids for completion in group] == [want, want]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_the_plain_forwards(kind: str, temperature: float) -> None:
    policy = policy_of(kind)
    requests = make_requests(SamplingParams(30, temperature=temperature))
    found = flatten(LocalEngine(policy, EngineConfig(max_rows=5)).generate(requests))
    assert len({completion.token_ids for completion in found}) > 12
    for completion in found:
        want = plain_logprobs(policy.model, completion, temperature)
        torch.testing.assert_close(torch.tensor(completion.logprobs), want, atol=1e-4, rtol=0)


RECURRENT = {
    "mamba": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    "falcon_mamba": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4},  # one head of keys for all queries
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_other_caches_give_the_plain_forwards_too(kind: str) -> None:
    torch.manual_seed(0)
    shape = AutoConfig.for_model(
        kind, vocab_size=VOCABULARY, initializer_range=0.4, eos_token_id=None, **RECURRENT[kind]
    )
    model = AutoModelForCausalLM.from_config(shape).eval()
    if not why_not_flat(model):
        model.set_attn_implementation(NAME)
    policy = Policy(model, TOKENIZER, frozenset({EOS}), context=128, flat=supports_flat(model))
    requests = make_requests(SamplingParams(12), samples=2)
    for completion in flatten(local_engine(policy).generate(requests)):
        want = plain_logprobs(policy.model, completion, 1.0)
        torch.testing.assert_close(torch.tensor(completion.logprobs), want, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["mamba", "xglm"])
def test_adapters_do_not_hide_what_a_padded_model_takes(kind: str) -> None:
    """Positions of left-padded prompts, and the cache's name, are those of the model inside."""
    targets: str | list[str] = ["in_proj"] if kind == "mamba" else "all-linear"
    shape = {"xglm": {"init_std": 0.4}, "mamba": RECURRENT["mamba"]}
    config = ModelConfig(
        path=f"init:{kind}", init=shape[kind],
        vocabulary=list(CHARACTERS), context=64, lora=LoraConfig(rank=2, targets=targets),
    )  # fmt: skip
    policy = load_policy(config)
    assert not policy.flat
    requests = make_requests(SamplingParams(8), samples=2)
    for request, group in zip(requests, local_engine(policy).generate(requests), strict=True):
        with torch.no_grad():
            want, _ = score(policy, [request.prompt_ids], [[c.token_ids for c in group]])
        for row, completion in zip(want, group, strict=True):
            found = torch.tensor(completion.logprobs)
            torch.testing.assert_close(found, row[: len(found)], atol=1e-3, rtol=0)


def assert_same(a: list[Completion], b: list[Completion]) -> None:
    """Equal but for the last bits of log-probabilities: products round by batch size."""
    assert [replace(x, logprobs=()) for x in a] == [replace(x, logprobs=()) for x in b]
    for x, y in zip(a, b, strict=True):
        assert x.logprobs == pytest.approx(y.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(max_rows=1),
        EngineConfig(max_rows=4, refill_fraction=0),
        EngineConfig(max_rows=7, prefill_tokens=10),
        EngineConfig(max_rows=8, refill_fraction=1),
        EngineConfig(cache_gb=1e-9),
        EngineConfig(cache_gb=2e-4),
    ],
)
def test_how_the_batch_is_filled_changes_nothing(config: EngineConfig) -> None:
    requests = make_requests(SamplingParams(40))
    whole = flatten(LocalEngine(policy_of()).generate(requests))
    assert {completion.finish for completion in whole} == {"stop", "length"}
    assert_same(flatten(LocalEngine(policy_of(), config).generate(requests)), whole)


def test_what_a_problem_gets_does_not_depend_on_the_others() -> None:
    requests = make_requests(SamplingParams(20))
    engine = LocalEngine(policy_of())
    together = engine.generate(requests)
    backwards = engine.generate(requests[::-1])[::-1]
    for index, request in enumerate(requests):
        assert_same(backwards[index], together[index])
        assert_same(engine.generate([request])[0], together[index])
    later = [replace(requests[3], samples=1, first_sample=2)]
    assert_same(engine.generate(later)[0], together[3][2:])


def test_seed_step_and_sample_change_the_noise() -> None:
    request = make_requests(SamplingParams(30))[2]
    texts = [completion.text for completion in LocalEngine(policy_of()).generate([request])[0]]
    other_step = LocalEngine(policy_of()).generate([replace(request, step=1)])[0]
    other_seed = LocalEngine(policy_of(), seed=1).generate([request])[0]
    assert len({*texts, *(x.text for x in other_step), *(x.text for x in other_seed)}) == 9


def test_settings_may_differ_by_request() -> None:
    kinds = [
        SamplingParams(12),
        SamplingParams(5, temperature=0),
        SamplingParams(12, temperature=0.6, top_k=4),
        SamplingParams(9, top_p=0.8, stop=("a", "e")),
    ]
    base = make_requests(kinds[0], count=4)
    requests = [replace(r, params=params) for r, params in zip(base, kinds, strict=True)]
    together = LocalEngine(policy_of(), EngineConfig(max_rows=5)).generate(requests)
    for request, group in zip(requests, together, strict=True):
        assert_same(LocalEngine(policy_of()).generate([request])[0], group)
        assert all(len(completion.token_ids) <= request.params.max_tokens for completion in group)


def test_a_prompt_is_prefilled_once_and_finished_rows_leave() -> None:
    requests = make_requests(SamplingParams(40), samples=4)
    requests.append(replace(requests[2], problem_id="twin", samples=2))
    for config in (EngineConfig(), EngineConfig(max_rows=3)):
        with counted_forwards(MODELS["llama"]) as sizes:
            found = flatten(LocalEngine(policy_of(), config).generate(requests))
        prompts = sum(len(ids) for ids in {request.prompt_ids for request in requests})
        # The last token of a completion is sampled and never run.
        assert sum(sizes) == prompts + sum(len(c.token_ids) - 1 for c in found)
    assert any(completion.finish == "stop" for completion in found)


def test_stop_token_ends_a_completion_and_stays_out_of_its_text() -> None:
    found = flatten(LocalEngine(policy_of()).generate(make_requests(SamplingParams(60), 8)))
    stopped = [completion for completion in found if completion.finish == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.token_ids[-1] == EOS
        assert EOS not in completion.token_ids[:-1]
    for completion in found:
        body = completion.token_ids[: -1 if completion.finish == "stop" else None]
        assert completion.text == "".join(CHARACTERS[t - 2] for t in body if t > EOS)
        assert set(completion.loss_mask) == {1}
        assert len(completion.loss_mask) == len(completion.logprobs) == len(completion.token_ids)
        assert completion.finish == "stop" or len(completion.token_ids) == 60


def test_stop_strings_end_a_completion_where_they_are_complete() -> None:
    policy = policy_of(stop_ids=frozenset())
    free = flatten(LocalEngine(policy).generate(make_requests(SamplingParams(40))))

    def one_each(completion: Completion) -> str:
        return "".join("#" if t <= EOS else CHARACTERS[t - 2] for t in completion.token_ids)

    # Two characters that really follow each other in some completion, and a single one.
    stop = (re.findall("[^#][^#]", one_each(free[0]))[3], "q")
    found = flatten(LocalEngine(policy).generate(make_requests(SamplingParams(40, stop=stop))))
    for plain, stopped in zip(free, found, strict=True):
        ends = [at + len(s) for s in stop if (at := one_each(plain).find(s)) >= 0]
        end = min(ends, default=40)
        assert stopped.token_ids == plain.token_ids[:end]
        assert stopped.finish == ("stop" if ends else "length")
    assert any(len(completion.token_ids) < 40 for completion in found)


def test_a_stop_string_of_white_space() -> None:
    policy = policy_of(stop_ids=frozenset())
    requests = make_requests(SamplingParams(40, stop=(" ",)))
    found = flatten(LocalEngine(policy).generate(requests))
    assert any(completion.text.endswith(" ") for completion in found)
    assert all(" " not in completion.text[:-1] for completion in found)


def test_one_token_and_a_full_context() -> None:
    engine = LocalEngine(policy_of())
    one = flatten(engine.generate(make_requests(SamplingParams(1))))
    assert all(len(completion.token_ids) == 1 for completion in one)
    prompt = make_requests(SamplingParams(1))[1].prompt_ids
    full = Request("full", prompt, 1, SamplingParams(128 - len(prompt)))
    assert len(engine.generate([full])[0]) == 1


def test_bfloat16_stays_near_float32() -> None:
    model = make_model("llama").to(torch.bfloat16)
    policy = Policy(model, TOKENIZER, frozenset({EOS}), context=128)
    for completion in flatten(LocalEngine(policy).generate(make_requests(SamplingParams(20)))):
        want = plain_logprobs(model, completion, 1.0)
        gap = (torch.tensor(completion.logprobs) - want).abs()
        assert gap.mean() < 0.1


def test_mode_and_gradients_are_left_as_they_were() -> None:
    policy = policy_of()
    policy.model.train()
    backbone(policy.model).layers[0].eval()
    try:
        LocalEngine(policy).generate(make_requests(SamplingParams(3)))
        assert policy.model.training
        assert not backbone(policy.model).layers[0].training
        assert backbone(policy.model).layers[1].training
        assert torch.is_grad_enabled()
    finally:
        policy.model.eval()


def test_version_and_progress() -> None:
    engine = LocalEngine(policy_of())
    engine.version = 7
    seen: list[Progress] = []
    found = flatten(engine.generate(make_requests(SamplingParams(9)), seen.append))
    assert {completion.versions for completion in found} == {(7, 7)}
    assert seen[-1] == Progress(18, 18, sum(len(c.token_ids) for c in found))
    assert [p.finished for p in seen] == sorted(p.finished for p in seen)
    assert engine.generate([]) == []


def request(length: int = 4, samples: int = 1, **params: object) -> Request:
    settings = {"max_tokens": 8, **params}
    return Request("the one", (2,) * length, samples, SamplingParams(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [LocalEngine, PaddedEngine])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            request(length=200),
            "'the one': its prompt of 200 tokens is longer than the context of 128",
        ),
        (request(length=125), "'the one'.*125 tokens and max_tokens 8.*at most 3"),
        (request(length=0), "'the one'.*no tokens"),
        (request(samples=0), "'the one'.*samples"),
        (request(max_tokens=0), "max_tokens: must be at least 1"),
        (request(temperature=-1.0), "temperature: must be"),
        (request(temperature=float("nan")), "temperature: must be"),
        (request(top_p=0.0), "top_p: must be"),
        (request(top_k=-1), "top_k: must be"),
        (request(min_p=1.5), "min_p: must be"),
        (request(stop=("",)), "stop: must be"),
    ],
)
def test_bad_requests_are_refused_in_one_line(
    kind: type[LocalEngine | PaddedEngine], bad: Request, message: str
) -> None:
    with pytest.raises(UserError, match=message) as error:
        kind(policy_of()).generate([request(), bad])
    assert "\n" not in str(error.value)


def test_diverged_weights_are_named() -> None:
    model = make_model("llama")
    model.get_output_embeddings().weight.data[3] = float("nan")
    engine = LocalEngine(Policy(model, TOKENIZER, frozenset({EOS}), context=128))
    with pytest.raises(FloatingPointError, match=r"'p0'.*not finite"):
        engine.generate(make_requests(SamplingParams(4), count=1))


def test_the_padded_engine_gives_the_same() -> None:
    model = make_model("llama")
    model.set_attn_implementation("eager")
    plain = Policy(model, TOKENIZER, frozenset({EOS}), context=128)
    requests = make_requests(SamplingParams(40, stop=("q",)))
    want = flatten(LocalEngine(policy_of()).generate(requests))
    assert_same(flatten(PaddedEngine(plain).generate(requests)), want)
    seen: list[Progress] = []
    assert_same(
        flatten(PaddedEngine(plain, EngineConfig(max_rows=5)).generate(requests, seen.append)), want
    )
    assert seen[-1] == Progress(18, 18, sum(len(c.token_ids) for c in want))


def test_a_model_that_is_not_flat_gets_the_padded_engine() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=2, n_head=4)
    ).eval()
    policy = Policy(model, TOKENIZER, frozenset({EOS}), context=128, flat=False)
    engine = local_engine(policy)
    assert isinstance(engine, PaddedEngine)
    assert isinstance(local_engine(policy_of()), LocalEngine)
    for completion in flatten(engine.generate(make_requests(SamplingParams(10)))):
        want = plain_logprobs(model, completion, 1.0)
        torch.testing.assert_close(torch.tensor(completion.logprobs), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_packed_weights_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lydite.ops.packed.LEAST_WORK", 0)
    monkeypatch.setattr("lydite.rollout.engine.LEAST_WORK", 0)
    policy = policy_of(kind)
    requests = make_requests(SamplingParams(40))
    plain = EngineConfig(pack_weights=False, max_rows=5)
    want = flatten(LocalEngine(policy, plain).generate(requests))
    for config in (EngineConfig(max_rows=5), EngineConfig(fast_blocks=False, max_rows=5)):
        assert_same(flatten(LocalEngine(policy, config).generate(requests)), want)
    assert not any("forward" in vars(module) for module in policy.model.modules())


@pytest.mark.parametrize("rows", [5, 12])
def test_large_mlps_give_the_plain_forwards(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # With few rows their weights are copied, with many they are used as they are.
    monkeypatch.setattr("lydite.ops.packed.TURN_FROM", 0)
    monkeypatch.setattr("lydite.ops.packed.LEAST_WORK", 0)
    policy = policy_of("qwen3")
    requests = make_requests(SamplingParams(40), samples=6)
    engine = LocalEngine(policy, EngineConfig(max_rows=rows))
    for completion in flatten(engine.generate(requests)):
        want = plain_logprobs(policy.model, completion, 1.0)
        torch.testing.assert_close(torch.tensor(completion.logprobs), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("config", [EngineConfig(max_rows=4), EngineConfig(pack_weights=False)])
def test_prompts_that_nobody_shares_go_another_way_to_the_same_tokens(
    kind: str, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(kind)
    requests = make_requests(SamplingParams(40), samples=1, count=9)
    found = flatten(LocalEngine(policy, config).generate(requests))
    assert len({len(completion.token_ids) for completion in found}) > 2  # rows leave in between
    shared = [replace(request, samples=2) for request in requests]
    assert_same(found, flatten(LocalEngine(policy, config).generate(shared))[::2])
    monkeypatch.setattr("lydite.rollout.local.OWN_ROWS", False)
    assert_same(found, flatten(LocalEngine(policy, config).generate(requests)))


def test_bfloat16_products_stay_near_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lydite.ops.packed.LEAST_WORK", 0)
    policy = policy_of()
    engine = LocalEngine(policy, EngineConfig(products="bfloat16"))
    gaps = [
        (torch.tensor(completion.logprobs) - plain_logprobs(policy.model, completion, 1.0)).abs()
        for completion in flatten(engine.generate(make_requests(SamplingParams(20))))
    ]
    gap = torch.cat(gaps)
    assert gap.mean() < 0.1
    assert gap.max() > 1e-3  # they were computed otherwise
    assert policy.model.dtype == torch.float32
