import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lydite.model.attention import NAME, hidden_states
from lydite.ops.groups import pack_groups, take

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11], [12]]
COMPLETIONS = [[[3, 4, 5], [9], [7, 7, 7, 7, 7, 7]], [[1, 2], [3, 3, 3]], [[4, 4, 4, 4]]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


def shared(model, prompts, completions):
    model.set_attn_implementation(NAME)
    packed = pack_groups(prompts, completions)
    hidden = hidden_states(model, packed.input_ids, packed.position_ids, packed.layout)
    log_p = model.lm_head(hidden[packed.predictor]).log_softmax(-1)
    return packed.padded(log_p.gather(1, packed.targets[:, None])[:, 0]), packed


def separate(model, prompts, completions):
    model.set_attn_implementation("eager")
    rows = []
    for prompt, group in zip(prompts, completions, strict=True):
        for completion in group:
            logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            rows.append(logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def gradients(model, output):
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    model.zero_grad()
    (output * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_shared_prompts_give_the_plain_values_and_gradient(model):
    ours, _ = shared(model, PROMPTS, COMPLETIONS)
    mine = gradients(model, ours)
    theirs = separate(model, PROMPTS, COMPLETIONS)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    wanted = gradients(model, theirs)
    assert (mine - wanted).norm() / wanted.norm() < 1e-6


def test_each_prompt_is_run_once_and_last_tokens_never(model):
    _, packed = shared(model, PROMPTS, COMPLETIONS)
    inner = sum(len(c) - 1 for group in COMPLETIONS for c in group)
    assert packed.input_ids.numel() == sum(map(len, PROMPTS)) + inner


def test_completions_of_one_token_need_no_tokens_of_their_own(model):
    ours, packed = shared(model, [[1, 2, 3]], [[[4], [5]]])
    assert packed.input_ids.tolist() == [1, 2, 3]
    torch.testing.assert_close(ours, separate(model, [[1, 2, 3]], [[[4], [5]]]), rtol=0, atol=1e-6)


def test_groups_and_completions_do_not_see_each_other(model):
    before, _ = shared(model, PROMPTS, COMPLETIONS)
    changed = [[[3, 4, 5], [9], [8, 8, 8, 8, 8, 8]], [[2, 2], [3, 3, 3]], [[4, 4, 4, 4]]]
    after, _ = shared(model, [PROMPTS[0], PROMPTS[1], [13]], changed)
    torch.testing.assert_close(before[[0, 1, 4]], after[[0, 1, 4]], rtol=0, atol=1e-6)
    assert not torch.allclose(before[5], after[5])


def test_rows_that_are_taken_often_have_the_same_gradient_every_time_on_several_threads():
    """Indexing does not: its backward pass adds in whatever order the threads come along."""
    x = torch.randn(300, 128, requires_grad=True)
    index = torch.randint(0, 20, (20, 100))
    weights = torch.randn(20, 100, 128)

    def gradient():
        x.grad = None
        taken = take(x, index)
        assert torch.equal(taken, x[index])
        (taken * weights).sum().backward()
        return x.grad.clone()

    torch.set_num_threads(2)
    try:
        first = gradient()
        assert all(torch.equal(gradient(), first) for _ in range(30))
    finally:
        torch.set_num_threads(1)
