"""Thinking budgets: where a thought is cut, by hand on scripted tokens, and in both engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lydite.config import UserError
from lydite.model.attention import NAME
from lydite.model.policy import Policy
from lydite.model.scoring import score
from lydite.model.thinking import CLOSE, OPEN
from lydite.rollout.budget import PHRASE, Span, Tags, budget_of, next_look
from lydite.rollout.budget_calls import generate_within
from lydite.rollout.engine import EngineConfig, draws_of
from lydite.rollout.local import LocalEngine
from lydite.rollout.padded import PaddedEngine
from lydite.rollout.rows import Rows
from lydite.rollout.stopping import Stopping
from lydite.types import Completion, Request, SamplingParams, ThinkingBudget, Thought

EOS = "<eos>"
SIGNS = "abcdefghijkl.\n</thinkmwors>"


def make_tokenizer(tags: bool) -> PreTrainedTokenizerFast:
    """One token a character, and with ``tags`` one for each tag."""
    words = ["<pad>", EOS, "<unk>", *dict.fromkeys(SIGNS)]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(w, special=True) for w in words[:3]])
    if tags:
        inner.add_tokens([AddedToken(tag, special=False) for tag in (OPEN, CLOSE)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token=EOS, unk_token="<unk>"
    )


ONE, SEVERAL = make_tokenizer(tags=True), make_tokenizer(tags=False)


def ids_of(text: str, tokenizer: PreTrainedTokenizerFast = ONE) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def thinking(tokens: int, phrase: str | None = "a.") -> ThinkingBudget:
    return ThinkingBudget((tokens,), phrase=phrase)


def play(
    script: str,
    budget: int | None,
    prompt: str = "ab<think>",
    tokenizer: PreTrainedTokenizerFast = ONE,
    **params: object,
) -> Completion:
    """What a row makes of a model that says ``script`` whatever it is shown: at position ``t`` its
    ``t``-th token.
    """
    tokens = ids_of(script, tokenizer)
    given = SamplingParams(
        **{
            "max_tokens": 30, "temperature": 0,
            "thinking": None if budget is None else thinking(budget), **params,
        }
    )  # fmt: skip
    request = Request("p", tuple(ids_of(prompt, tokenizer)), 1, given)
    size = len(tokenizer)
    stopping = Stopping(tokenizer, [tokenizer.eos_token_id], [given.stop], size)
    rows = Rows([request], 1, stopping, torch.device("cpu"))
    rows.add(draws_of(0, request, seed=0), [0])
    for token in [*tokens, *[ids_of("k")[0]] * given.max_tokens]:
        ended = rows.sample(torch.nn.functional.one_hot(torch.tensor([token]), size) * 9.0)
        if ended:
            return rows.completions(ended, (0, 0))[0][1]
    raise AssertionError("it never ended")


def injected(completion: Completion, tokenizer: PreTrainedTokenizerFast = ONE) -> str:
    """What the model did not sample."""
    pairs = zip(completion.token_ids, completion.loss_mask, strict=True)
    return tokenizer.decode([token for token, bit in pairs if not bit])


SEVEN = "bcdefgh"


@pytest.mark.parametrize("tokenizer", [ONE, SEVERAL], ids=["one token", "several"])
def test_an_open_thought_is_cut_at_the_budget(tokenizer: PreTrainedTokenizerFast) -> None:
    found = play(SEVEN * 9, 3, tokenizer=tokenizer, max_tokens=20)
    assert found.text.startswith("bcda.</think>")
    assert injected(found, tokenizer) == "a.</think>"
    assert found.thought == Thought(budget=3, tokens=3, cut=True)
    assert len(found.token_ids) == 20 and found.sampled == 20 - len(ids_of("a.</think>", tokenizer))
    pairs = list(zip(found.logprobs, found.loss_mask, strict=True))
    assert all((lp == 0.0) == (bit == 0) for lp, bit in pairs)


@pytest.mark.parametrize("tokenizer", [ONE, SEVERAL], ids=["one token", "several"])
@pytest.mark.parametrize("budget", [3, 9, 10, 11, 25])
def test_a_thought_that_closes_itself_is_left_alone(
    budget: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    script = f"bc</think>ghi{EOS}"
    tag = len(ids_of(CLOSE, tokenizer))
    found = play(script, budget, tokenizer=tokenizer, max_tokens=40)
    if budget < 2 + tag:  # The budget ends amid a tag of several tokens.
        assert found.thought == Thought(budget, budget, cut=True)
    else:
        assert found.text == "bc</think>ghi" and all(found.loss_mask)
        assert found.thought == Thought(budget, 2, cut=False)
    free = play(script, None, tokenizer=tokenizer, max_tokens=40)
    assert free.thought is None and free.text == "bc</think>ghi"


def test_the_opening_tag_that_a_model_writes_is_no_thought() -> None:
    found = play("<think>" + SEVEN * 9, 3, prompt="ab")
    assert found.text.startswith("<think>bcda.</think>")
    assert found.thought == Thought(3, 3, cut=True)
    late = play("ab<think>" + SEVEN * 9, 3, prompt="ab")
    assert late.text.startswith("ab<think>bcda.</think>") and late.thought == Thought(
        3, 3, cut=True
    )


@pytest.mark.parametrize("prompt", ["ab", "ab<think>\n\n</think>\n\n"])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_model_that_does_not_think_is_left_alone(prompt: str, budget: int) -> None:
    found = play(SEVEN * 9, budget, prompt=prompt)
    assert found.text == (SEVEN * 9)[:30] and all(found.loss_mask)
    assert found.thought == Thought(budget, 0, cut=False)


@pytest.mark.parametrize(
    ("prompt", "written", "text"),
    [
        ("ab<think>", "\n\n</think>", "\n\n</think>bc"),
        ("ab<think>\n", "\n</think>", "\n</think>c"),
        ("ab<think>\n\n", "</think>", "</think>"),
        ("ab", "\n\n</think>", "<think>\n\n</think>c"),
    ],
)
def test_a_budget_of_nothing_closes_at_once_and_says_nothing(
    prompt: str, written: str, text: str
) -> None:
    script = "abcdefghi" if "<think>" in prompt else "<think>abcdefghi"
    found = play(script + EOS, 0, prompt=prompt)
    assert injected(found) == written
    assert found.text.startswith(written if "<think>" in prompt else "<think>" + written)
    assert found.thought == Thought(0, 0, cut=True)


def test_the_phrase_is_ours_where_the_tokenizer_can_write_it() -> None:
    words = "".join(dict.fromkeys(PHRASE + SIGNS))
    able = make_tokenizer_of(words)
    tags = Tags(able)
    request = Request("p", (1,), 1, SamplingParams(200, thinking=thinking(4, None)))
    assert able.decode(tags.plan(request).cut) == PHRASE + CLOSE
    unable = Tags(ONE).plan(request)
    assert ONE.decode(unable.cut) == CLOSE
    with pytest.raises(UserError, match=r"budget_phrase.*no token for 'Q'"):
        Tags(ONE).plan(replace(request, params=SamplingParams(200, thinking=thinking(4, "Q"))))
    with pytest.raises(UserError, match=r"thinking_budget.*no tokens for </think>"):
        Tags(make_tokenizer_of("abc")).plan(request)


def make_tokenizer_of(signs: str) -> PreTrainedTokenizerFast:
    words = ["<pad>", EOS, "<unk>", *dict.fromkeys(signs)]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token=EOS, unk_token="<unk>"
    )


def test_what_ends_a_completion_ends_it_within_a_thought() -> None:
    assert play(f"bc{EOS}", 3).thought == Thought(3, 2, cut=False)
    at = play(f"bc{EOS}" + SEVEN, 3)  # the token that uses the budget up
    assert at.finish == "stop" and at.text == "bc" and all(at.loss_mask)
    assert play("bcd" + SEVEN, 3, stop=("cd",)).text == "bcd"
    assert play("bc" + EOS, 2).finish != "stop"  # cut before it could be said


def test_what_is_injected_ends_nothing() -> None:
    found = play("b" * 30, 3, stop=(".", "a.</think>", ">", "b</"), max_tokens=12)
    assert found.text == "bbba.</think>bbbbbb" and found.finish == "length"
    found = play("b" * 30, 3, stop=(".", "bb"), max_tokens=12, thinking=thinking(1, "a."))
    assert found.text == "ba.</think>bb" and found.finish == "stop"
    # A phrase that holds the end token ends nothing either.
    found = play("b" * 30, 3, thinking=thinking(3, EOS), max_tokens=12)
    assert found.text.startswith(f"bbb{EOS}</think>b") and len(found.token_ids) == 12


def test_a_thought_that_begins_too_late_for_an_answer_is_not_cut() -> None:
    script = "a" * 8 + "<think>" + "b" * 30  # budget 3: cut at 12, and 3 more are injected
    assert play(script, 3, prompt="ab", max_tokens=16).thought == Thought(3, 3, cut=True)
    late = play(script, 3, prompt="ab", max_tokens=15)
    assert late.thought == Thought(3, 6, cut=False) and all(late.loss_mask)


@pytest.mark.parametrize(("prompt", "need"), [("ab<think>", 7), ("ab", 8)])
def test_an_answer_must_have_room(prompt: str, need: int) -> None:
    """Three tokens of thought, two of phrase, a tag (two where the model opens) and an answer."""
    assert play("b" * 30, 3, prompt=prompt, max_tokens=need)
    with pytest.raises(UserError, match=f"thinking_budget: 3 tokens .* to {need} at least"):
        play("b" * 30, 3, prompt=prompt, max_tokens=need - 1)


def test_next_look() -> None:
    assert next_look(None, 4, 3) == 8  # opened by the next token at the earliest
    assert next_look(Span(2, 5), 6, 3) is None
    assert next_look(Span(2, None), 3, 3) == 5
    assert next_look(Span(2, None), 5, 3) == 5
    assert next_look(Span(2, None), 9, 3) == 9


def test_drawn_budgets_are_addressed() -> None:
    request = Request("p", (1,), 8, SamplingParams(50))

    def at(step: int, name: str) -> Request:
        return replace(request, step=step, problem_id=name)

    several = ThinkingBudget((4, 8, 16))
    drawn = {
        (seed, step, name): budget_of(several, seed, at(step, name), 1)
        for seed in range(3)
        for step in range(40)
        for name in "ab"
    }
    shares = np.unique(list(drawn.values()), return_counts=True)
    assert shares[0].tolist() == [4, 8, 16] and min(shares[1]) > 240 / 3 * 0.7
    again = budget_of(several, 2, replace(at(39, "b"), first_sample=16), 17)
    assert again == drawn[2, 39, "b"]  # the group's, whoever asks for how many of it
    for step in range(40):
        assert {budget_of(several, 0, at(step, "a"), i) for i in range(8)} == {drawn[0, step, "a"]}
    each = replace(several, per_sample=True)
    assert len({budget_of(each, 0, request, sample) for sample in range(20)}) == 3
    wide = ThinkingBudget(range(10, 14))
    assert {budget_of(wide, seed, request, 0) for seed in range(60)} == {10, 11, 12, 13}
    assert budget_of(ThinkingBudget((7,)), 5, request, 3) == 7


SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.4, "eos_token_id": None,
}  # fmt: skip


def make_policy(attention: str) -> Policy:
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=len(ONE), attn_implementation=attention, **SIZES)
    return Policy(LlamaForCausalLM(config), ONE, frozenset({ONE.eos_token_id}), context=128)


POLICY = make_policy(NAME)
PLAIN = replace(make_policy("eager"), flat=False)
PROMPTS = ("ab<think>", "abcd", "a<think>\n", "abc<think></think>", "c")


def requests_with(budget: ThinkingBudget | None, **params: object) -> list[Request]:
    given = SamplingParams(**{"max_tokens": 40, "thinking": budget, **params})
    return [Request(f"p{i}", tuple(ids_of(p)), 4, given) for i, p in enumerate(PROMPTS)]


def flat(groups: Sequence[Sequence[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def assert_same(a: Sequence[Completion], b: Sequence[Completion]) -> None:
    assert [replace(x, logprobs=()) for x in a] == [replace(x, logprobs=()) for x in b]
    for x, y in zip(a, b, strict=True):
        assert x.logprobs == pytest.approx(y.logprobs, abs=1e-4)


ENGINES = [
    LocalEngine(POLICY),
    LocalEngine(POLICY, EngineConfig(max_rows=3)),
    PaddedEngine(PLAIN),
    PaddedEngine(PLAIN, EngineConfig(max_rows=7)),
]
BUDGETS = [
    thinking(0), thinking(6), thinking(1, ""), ThinkingBudget((0, 3, 9), per_sample=True),
    ThinkingBudget(range(2, 12), phrase="b"),
]  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
def test_engines_agree_and_the_cache_holds_what_is_injected(budget: ThinkingBudget) -> None:
    found = flat(ENGINES[0].generate(requests_with(budget)))
    assert sum(c.thought is not None and c.thought.cut for c in found) >= 4
    for engine in ENGINES[1:]:
        assert_same(flat(engine.generate(requests_with(budget))), found)
    for completion in found:
        with torch.no_grad():
            want, _ = score(POLICY, [completion.prompt_ids], [[completion.token_ids]])
        mask = torch.tensor(completion.loss_mask)
        have = torch.tensor(completion.logprobs)
        torch.testing.assert_close(have, want[0] * mask, atol=1e-4, rtol=0)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("stop", [(), ("e", "k")])
def test_two_calls_give_the_same_tokens(budget: ThinkingBudget, stop: tuple[str, ...]) -> None:
    requests = requests_with(budget, stop=stop)
    engine = LocalEngine(POLICY, seed=4)
    engine.version = 7
    plain = requests_with(None)[:1]
    found = generate_within(engine, [*requests, *plain], ONE, seed=4)
    assert_same(flat(found[:-1]), flat(engine.generate(requests)))
    assert_same(found[-1], engine.generate(plain)[0])


def test_a_bigger_budget_has_the_same_tokens_up_to_the_smaller() -> None:
    by_budget = {n: flat(ENGINES[0].generate(requests_with(thinking(n)))) for n in (2, 5, 9)}
    free = flat(ENGINES[0].generate(requests_with(None)))
    cuts = 0
    for small in (2, 5, 9):
        for cut, whole in zip(by_budget[small], free, strict=True):
            begin = cut.loss_mask.index(0) if 0 in cut.loss_mask else len(cut.token_ids)
            cuts += begin < len(cut.token_ids)
            assert cut.token_ids[:begin] == whole.token_ids[:begin]
            if begin == len(cut.token_ids):
                assert cut.token_ids == whole.token_ids
    assert cuts > 12


def test_rows_without_a_budget_are_what_they_were() -> None:
    """Beside rows that have one, in one call."""
    plain, bound = requests_with(None), requests_with(thinking(3))
    both = [replace(r, problem_id=f"{r.problem_id}b") for r in bound]
    engine = LocalEngine(POLICY, EngineConfig(max_rows=6))
    assert_same(flat(engine.generate([*plain, *both])[: len(plain)]), flat(engine.generate(plain)))


class Scripted:
    """An engine that only knows how to generate: it goes on with a script, and says no more than
    ``most`` tokens at a time.
    """

    version = 3

    def __init__(self, script: str, most: int = 99) -> None:
        self.script = ids_of(script)
        self.asked: list[Request] = []
        self.most = most

    def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        self.asked += requests
        return [[self._one(r, r.first_sample + i) for i in range(r.samples)] for r in requests]

    def _one(self, request: Request, sample: int) -> Completion:
        assert request.params.thinking is None
        size = min(request.params.max_tokens, self.most)
        ids = tuple(self.script[request.position : request.position + size])
        stopped = ONE.eos_token_id in ids
        if stopped:
            ids = ids[: ids.index(ONE.eos_token_id) + 1]
        text = ONE.decode(ids[:-1] if stopped else ids)
        ones = (1,) * len(ids)
        return Completion(
            request.problem_id, sample, request.prompt_ids, ids, (-1.0,) * len(ids), ones,
            "stop" if stopped else "length", text, (self.version, self.version),
        )  # fmt: skip


@pytest.mark.parametrize("script", ["bcdefgh" * 3 + EOS, f"bc</think>d{EOS}", f"b{EOS}", "b" * 60])
@pytest.mark.parametrize("prompt", ["ab<think>", "ab"])
@pytest.mark.parametrize("budget", [0, 3, 8])
def test_two_calls_are_what_one_engine_does(script: str, prompt: str, budget: int) -> None:
    script = script if "<think>" in prompt else "<think>" + script
    params = SamplingParams(30, temperature=0, thinking=thinking(budget))
    request = Request("p", tuple(ids_of(prompt)), 2, params)
    engine = Scripted(script + "k" * 60)
    found = generate_within(engine, [request], ONE)[0]
    want = play(script, budget, prompt=prompt)
    for sample, completion in enumerate(found):
        assert completion == replace(
            want, sample=sample, versions=(3, 3), logprobs=tuple(-1.0 * b for b in want.loss_mask)
        )
    assert engine.asked[0].samples == 2  # the prompt is shared as far as it can be


def test_an_engine_that_gives_less_than_asked_ends_the_completion() -> None:
    params = SamplingParams(30, temperature=0, thinking=thinking(8))
    request = Request("p", tuple(ids_of("ab<think>")), 1, params)
    found = generate_within(Scripted("b" * 90, most=5), [request], ONE)[0][0]
    assert found.text == "bbbbb" and found.finish == "length"


def test_a_phrase_amid_a_character_harms_no_tag() -> None:
    """A byte-level tokenizer: the budget ends after one of the two bytes of é."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate([*sorted(letters), EOS])}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(EOS, special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=EOS, pad_token=EOS)
    found = play("aéé" + EOS, 2, tokenizer=tokenizer, max_tokens=24)
    assert found.text.startswith("a�a.</think>") and found.thought == Thought(2, 2, cut=True)


def test_progress_counts_what_is_sampled() -> None:
    seen: list[int] = []
    found = ENGINES[0].generate(requests_with(thinking(2)), lambda at: seen.append(at.tokens))
    assert seen[-1] == sum(completion.sampled for completion in flat(found))
