"""Examples that are packed together learn as if each were alone: flat, and padded for models that
cannot run flat."""

import pytest
import torch

from lydite.model.loading import ModelConfig, load_policy
from lydite.model.scoring import score
from lydite.train.optimizer import OptimizerConfig
from lydite.train.sft import Example, SFTConfig, SFTTrainer, examples_of
from lydite.types import Message, Problem

# Of several lengths, the third with two answers and a question between them.
EXAMPLES = [
    Example([5, 6, 7], [8, 9, 10, 11], [1, 1, 1, 1]),
    Example([12], [13, 14, 15, 16, 17, 18, 19], [1, 1, 1, 1, 1, 1, 1]),
    Example([20, 21], [22, 23, 24, 25, 26, 27], [1, 1, 0, 0, 1, 1]),
    Example([28, 29, 30, 31, 32], [33], [1]),
]
PATHS = pytest.mark.parametrize("flat", [True, False], ids=["flat", "padded"])


def policy_on(tiny, flat):
    policy = tiny(torch.float64)
    if not flat:
        policy.flat = False
        policy.model.set_attn_implementation("sdpa")
    return policy


def loss(policy, examples):
    """The sum over learned tokens, of all examples in one pass."""
    logprobs, _ = score(policy, [e.prompt_ids for e in examples], [[e.token_ids] for e in examples])
    masks = [
        torch.tensor([*e.loss_mask, *[0] * (logprobs.shape[1] - len(e.loss_mask))])
        for e in examples
    ]
    return -(logprobs * torch.stack(masks)).sum()


def gradient(policy, examples):
    policy.model.zero_grad()
    value = loss(policy, examples)
    value.backward()
    grads = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    return float(value.detach()), torch.cat(grads).clone()


@PATHS
def test_packed_is_the_sum_of_what_each_is_alone(tiny, flat):
    policy = policy_on(tiny, flat)
    packed, grad = gradient(policy, EXAMPLES)
    alone = [gradient(policy, [example]) for example in EXAMPLES]
    assert packed == pytest.approx(sum(value for value, _ in alone), rel=1e-9)
    total = sum(grad for _, grad in alone)
    assert (grad - total).norm() / total.norm() < 1e-9


@PATHS
def test_packing_flat_is_the_plain_way(tiny, flat):
    whole, _ = gradient(policy_on(tiny, flat), EXAMPLES)
    plain, _ = gradient(policy_on(tiny, False), EXAMPLES)
    assert whole == pytest.approx(plain, rel=1e-9)


@PATHS
@pytest.mark.parametrize("changed", range(len(EXAMPLES)))
def test_no_token_of_a_document_has_any_influence_on_another(tiny, flat, changed):
    """Other tokens of equal number in one document, and exactly the same numbers in all others."""
    policy = policy_on(tiny, flat)
    other = EXAMPLES[changed]
    perturbed = list(EXAMPLES)
    perturbed[changed] = Example(
        [t + 1 for t in other.prompt_ids], [t + 1 for t in other.token_ids], other.loss_mask
    )
    before, after = (
        score(policy, [e.prompt_ids for e in batch], [[e.token_ids] for e in batch])[0].detach()
        for batch in (EXAMPLES, perturbed)
    )
    for row in range(len(EXAMPLES)):
        moved = float((before[row] - after[row]).abs().max())
        assert (moved > 0) if row == changed else (moved == 0), row


@PATHS
def test_the_loss_of_one_document_has_no_gradient_at_the_tokens_of_another(tiny, flat):
    """At the embedded tokens: exactly 0 at others', and something at each of its own."""
    policy = policy_on(tiny, flat)
    seen = []
    policy.model.get_input_embeddings().register_forward_hook(
        lambda module, ids, embedded: seen.append((ids[0].flatten(), embedded))
    )
    for one, example in enumerate(EXAMPLES):
        logprobs, _ = score(
            policy, [e.prompt_ids for e in EXAMPLES], [[e.token_ids] for e in EXAMPLES]
        )
        ids, embedded = seen[-1]
        (grad,) = torch.autograd.grad(logprobs[one].sum(), embedded)
        reached = grad.flatten(0, 1).abs().sum(1) > 0
        assert sorted(ids[reached].tolist()) == [*example.prompt_ids, *example.token_ids[:-1]]


def test_the_question_between_two_answers_is_not_learned(tiny):
    policy = tiny(torch.float64)
    example = EXAMPLES[2]
    logprobs, _ = score(policy, [example.prompt_ids], [[example.token_ids]])
    expected = -float(logprobs[0, [0, 1, 4, 5]].sum().detach())
    assert float(loss(policy, [example]).detach()) == pytest.approx(expected)
    config = SFTConfig(steps=1, batch_size=1, optimizer=OptimizerConfig(lr=1e-3))
    trained = SFTTrainer(policy, config, [example], seed=0).step(0)
    assert trained.metrics["loss"] == pytest.approx(expected / 4)


TALK = Problem(
    "p",
    "2",
    (Message("user", "1"), Message("assistant", "ab", learned=True), Message("user", "2")),
    worked="c",
)


@pytest.mark.parametrize(
    ("loss_on", "learned"), [("answer", "ab.c."), ("last", "c."), ("all", "u1aab.u2ac.")]
)
def test_what_is_learned_of_a_conversation(loss_on, learned):
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    policy = load_policy(
        ModelConfig(path="init:llama", init=shape, vocabulary=[*"12abc"], context=32)
    )
    config = SFTConfig(steps=1, loss_on=loss_on)
    (example,) = examples_of(policy, [TALK], config)
    names = {"<user>": "u", "<assistant>": "a", "<eos>": "."}
    tokens = policy.tokenizer.convert_ids_to_tokens(list(example.token_ids))
    kept = [t for t, bit in zip(tokens, example.loss_mask, strict=True) if bit]
    assert "".join(names.get(token, token) for token in kept) == learned
