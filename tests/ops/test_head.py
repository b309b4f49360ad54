import pytest
import torch

from lydite.ops import head
from lydite.ops.head import HeadScale, token_logprobs

SCALES = [
    HeadScale(),
    HeadScale(temperature=0.7),
    HeadScale(1.3, scale=0.25),
    HeadScale(0.9, 1.0, softcap=3.0),
]


def plain(hidden, weight, bias, targets, scaling):
    logits = torch.nn.functional.linear(hidden, weight, bias) * scaling.scale
    if scaling.softcap:
        logits = scaling.softcap * torch.tanh(logits / scaling.softcap)
    log_p = (logits / scaling.temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def inputs(rows=7, width=5, vocabulary=11, bias=True):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    targets = torch.randint(vocabulary, (rows,), generator=generator)
    return draw(rows, width), draw(vocabulary, width), draw(vocabulary) if bias else None, targets


@pytest.mark.parametrize("scaling", SCALES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tile", [(1, 1), (22, 7), (6, 3), (1 << 20, 4096)])
def test_values_and_gradients_equal_the_plain_way(scaling, bias, tile, monkeypatch):
    """Tiles of (elements, rows at most); one that divides neither rows nor columns among them."""
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", tile[0])
    monkeypatch.setattr(head, "ROWS_AT_ONCE", tile[1])
    hidden, weight, offset, targets = inputs(bias=bias)
    leaves = [x for x in (hidden, weight, offset) if x is not None]
    pull = torch.linspace(-1, 2, 7, dtype=torch.float64)
    ours = token_logprobs(hidden, weight, offset, targets, scaling)
    theirs = plain(hidden, weight, offset, targets, scaling)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    found = torch.autograd.grad((ours[0] * pull + ours[1] * pull**2).sum(), leaves)
    wanted = torch.autograd.grad((theirs[0] * pull + theirs[1] * pull**2).sum(), leaves)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_uniform_head_by_hand():
    """Four equal logits: log-probability ln(1/4), entropy ln 4."""
    hidden, weight = torch.ones(1, 2), torch.ones(4, 2)
    logprob, entropy = token_logprobs(hidden, weight, None, torch.tensor([2]), HeadScale())
    assert logprob.item() == pytest.approx(-1.386294, abs=1e-5)
    assert entropy.item() == pytest.approx(1.386294, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropies_of_certain_and_far_logits_are_exact(dtype, monkeypatch):
    """Row 0 is certain of a token with logit 1000 (entropy 0), row 1 knows nothing at -1000 (ln 4),
    row 2 meets its highest logit in the last of the tiles: two that are equal and far above.
    """
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 3)
    logits = torch.tensor([[0.0, 1e3, 0, 0], [-1e3] * 4, [0.0, 0, 500, 500]], dtype=dtype)
    logprobs, entropies = token_logprobs(
        torch.eye(3, dtype=dtype), logits.t().contiguous(), None, torch.tensor([1, 0, 3]), SCALES[0]
    )
    wanted = torch.tensor([0.0, 1.3862943611, 0.6931471806], dtype=dtype)
    torch.testing.assert_close(entropies, wanted, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(logprobs, -wanted, atol=1e-7, rtol=1e-6)


def test_logits_held_at_once_do_not_grow_with_rows(monkeypatch):
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 44)
    sizes = []
    real = head.raw_logits
    monkeypatch.setattr(
        head, "raw_logits", lambda h, w, b: sizes.append(h.shape[0] * w.shape[0]) or real(h, w, b)
    )
    hidden, weight, _, targets = inputs(rows=50)
    logprobs, _ = token_logprobs(hidden, weight, None, targets, HeadScale())
    logprobs.sum().backward()
    assert max(sizes) <= 44
    assert sum(sizes) == 2 * 50 * 11


def test_bfloat16_inputs_give_float32_results():
    hidden, weight, _, targets = inputs(bias=False)
    logprobs, entropy = token_logprobs(
        hidden.bfloat16(), weight.bfloat16(), None, targets, HeadScale()
    )
    assert logprobs.dtype == entropy.dtype == torch.float32


@pytest.mark.parametrize("chunk", [4000 * 16, 4000 * 2048])
def test_a_bfloat16_gradient_does_not_lose_what_a_chunk_adds(chunk, monkeypatch):
    """A sum in bfloat16 would be off by 2% here; rounding it once is off by 0.2%."""
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", chunk)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2048, 16, generator=generator).bfloat16()
    start = (torch.randn(4000, 16, generator=generator) * 0.1).bfloat16()
    targets = torch.randint(4000, (2048,), generator=generator)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        weight = start.to(dtype, copy=True).requires_grad_()
        token_logprobs(hidden.to(dtype), weight, None, targets, HeadScale())[0].mean().backward()
        gradients.append(weight.grad.float())
    exact, found = gradients
    assert (found - exact).norm() < 0.004 * exact.norm()


def test_no_tokens_give_no_gradient():
    hidden, weight, bias, _ = inputs(rows=0)
    logprobs, entropies = token_logprobs(
        hidden, weight, bias, torch.zeros(0, dtype=torch.long), HeadScale()
    )
    (logprobs.sum() + entropies.sum()).backward()
    assert hidden.grad.shape == hidden.shape
    assert not weight.grad.any() and not bias.grad.any()
