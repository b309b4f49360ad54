import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lydite.model.attention import NAME, hidden_states
from lydite.ops import groups
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


ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(
    ("prompts", "completions"),
    [
        ([5, 1, 9], [[4, 1, 7], [1], [3, 3]]),  # a group without tokens of its own
        ([3], [[1, 1]]),  # and nothing but such
        ([40, 2], [[1, 30], [20, 2, 2, 2]]),
    ],
)
def test_attention_in_parts_is_attention(dtype, kv_heads, prompts, completions, monkeypatch):
    """Against one softmax over a mask in float64, values and gradients; all ways of computing."""
    ids = [[[1] * n for n in group] for group in completions]
    packed = []
    for parts in (0, 1e9):
        monkeypatch.setattr(groups, "PARTS_FROM", parts)
        packed.append(pack_groups([[1] * n for n in prompts], ids))
    owner = [p for p, n in enumerate(prompts) for _ in range(n)]
    row = [-1] * len(owner)
    position = [i for n in prompts for i in range(n)]
    for p, group in enumerate(completions):
        for n in group:
            owner += [p] * (n - 1)
            row += [max(row) + 1] * (n - 1)
            position += range(n - 1)
    own, line, place = (torch.tensor(x) for x in (owner, row, position))
    total = len(owner)
    same = (line[:, None] == line) & (own[:, None] == own) & (place[:, None] >= place)
    mask = same | ((line[:, None] >= 0) & (line < 0) & (own[:, None] == own))
    noise = torch.Generator().manual_seed(1)
    made = [torch.randn(1, h, total, 8, generator=noise) for h in (6, kv_heads, kv_heads)]
    made = [(3 * x).to(dtype) for x in made]
    pull = torch.randn(1, total, 6, 8, generator=noise).to(dtype)

    def gradients(attend, inputs, pull):
        inputs = [x.clone().requires_grad_() for x in inputs]
        out = attend(*inputs)
        return [out, *torch.autograd.grad((out * pull).sum(), inputs)]

    def plain(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True
        ).transpose(1, 2)

    wanted = gradients(plain, [x.double() for x in made], pull.double())
    ways = [(packed[0], 0.0), (packed[1], 0.0), (packed[1], 1e9)]
    for way, up_to in ways:
        monkeypatch.setattr(groups, "GRID_UP_TO", up_to)
        monkeypatch.setattr(groups, "GRID_FILLED", 0.0)
        found = gradients(lambda *x, at=way.layout: at.attend(0, *x, 0.3), made, pull)
        for a, b in zip(found, wanted, strict=True):
            assert (a.double() - b).norm() <= ROUNDING[dtype] * b.norm()


def test_keys_of_a_prompt_are_not_copied_for_each_completion():
    """What the backward pass keeps is each token once, not a prompt for each completion."""
    kept = []
    packed = pack_groups([[1] * 300], [[[1] * 3] * 16])
    total = packed.input_ids.numel()
    inputs = [torch.randn(1, 2, total, 8, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        packed.layout.attend(0, *inputs, 0.3)
    assert max(kept) == total * 2 * 8


@pytest.mark.parametrize("way", ["grid", "parts", "masked", "prompts"])
def test_tokens_that_fill_a_micro_batch_up_count_nowhere(model, way, monkeypatch):
    monkeypatch.setattr(groups, "GRID_UP_TO", 1000 if way in ("grid", "prompts") else 0)
    monkeypatch.setattr(groups, "PARTS_FROM", 0 if way == "parts" else 10**9)
    monkeypatch.setattr(groups, "WHOLE", 170)
    prompts = [[1, 2, 3, 4, 5] * 8, [6, 7, 8] * 10]
    completions = [[[9, 3, 4, 5] * 8] * 3, [[1, 2] * 11, [4, 3, 3] * 20]]
    sizes = {1: (243, 178), 64: (256, 192)}
    if way == "prompts":
        prompts, completions = [p * 4 for p in prompts], [[[3]] * 2, [[1]]]
        sizes = {1: (280, 3), 64: (320, 3)}  # few targets stay as they are
    found = []
    for size, want in sizes.items():
        monkeypatch.setattr(groups, "ROUND", size)
        out, packed = shared(model, prompts, completions)
        found.append([out, gradients(model, out)])
        assert (packed.input_ids.numel(), packed.targets.numel()) == want
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-9)
