"""Attention without padding on a GPU: on the CPU with kernels written out in their place, with the
same signature and the same demands; where there is a GPU, with PyTorch's own.
"""

from __future__ import annotations

import warnings
from itertools import pairwise

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lydite.model.attention import NAME, hidden_states
from lydite.model.training_blocks import fast_layers
from lydite.ops import groups, varlen
from lydite.ops.decode import Arena, KeyValueShape
from lydite.ops.groups import pack_groups
from lydite.ops.prefill import PrefillLayout

HEADS = 6
ROUNDING = {torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}
real = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Kernels:
    """``_flash_attention_forward`` and ``_backward`` of PyTorch's CUDA builds, sequence by
    sequence. ``padded``: normalisers as before PyTorch 2.7.
    """

    def __init__(self, padded: bool = False) -> None:
        self.padded = padded
        self.calls: list[str] = []

    def spans(self, offsets, longest, x):
        assert offsets.dtype == torch.int32 and offsets.is_contiguous() and offsets[0] == 0
        assert int(offsets[-1]) == len(x) and int(offsets.diff().max()) <= longest
        assert longest > 1, "one query a sequence: heads would be swapped with queries"
        assert x.stride(-1) == 1 and x.shape[-1] % 8 == 0
        ends = offsets.tolist()
        return [slice(a, b) for a, b in pairwise(ends)]

    def pairs(self, q, k, cum_q, cum_k, max_q, max_k):
        assert len(cum_q) == len(cum_k)
        return enumerate(zip(self.spans(cum_q, max_q, q), self.spans(cum_k, max_k, k), strict=True))

    def scores(self, q, k, scale, causal):
        k = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)
        s = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
        if causal:  # aligned at the end
            n, m = s.shape[1:]
            s = s.masked_fill(torch.ones(n, m).triu(1 + m - n).bool(), float("-inf"))
        return s

    def forward(self, query, key, value, *others, scale=None):
        cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask = others
        assert dropout_p == 0 and not return_debug_mask
        self.calls.append("forward")
        out = torch.empty_like(query)
        norm = torch.zeros(len(query), query.shape[1])
        padded = torch.full((len(cum_seq_q) - 1, query.shape[1], max_q), float("nan"))
        for n, (at, keys) in self.pairs(query, key, cum_seq_q, cum_seq_k, max_q, max_k):
            s = self.scores(query[at], key[keys], scale, is_causal)
            wide = value[keys].double().repeat_interleave(HEADS // value.shape[1], 1)
            out[at] = torch.einsum("hqk,khd->qhd", s.softmax(2), wide).to(out.dtype)
            norm[at] = s.logsumexp(2).t().to(norm.dtype)
            padded[n, :, : at.stop - at.start] = norm[at].t()
        nothing = torch.empty(0)
        return out, padded if self.padded else norm.t().contiguous(), nothing, nothing, nothing

    def backward(self, grad_out, query, key, value, out, logsumexp, *others, scale=None):
        cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, _, _ = others
        assert dropout_p == 0 and logsumexp.is_contiguous() and grad_out.is_contiguous()
        self.calls.append("backward")
        found = [torch.zeros_like(x, dtype=torch.double) for x in (query, key, value)]
        repeat = HEADS // key.shape[1]
        for n, (at, keys) in self.pairs(query, key, cum_seq_q, cum_seq_k, max_q, max_k):
            size = at.stop - at.start
            norm = logsumexp[n, :, :size] if self.padded else logsumexp[:, at]
            p = (self.scores(query[at], key[keys], scale, is_causal) - norm[..., None]).exp()
            grad, k, v = (x.double() for x in (grad_out[at], key[keys], value[keys]))
            k, v = (x.repeat_interleave(repeat, 1) for x in (k, v))
            d_p = torch.einsum("qhd,khd->hqk", grad, v)
            less = (grad * out[at].double()).sum(2).t()[..., None]
            d_s = p * (d_p - less) * scale
            found[0][at] += torch.einsum("hqk,khd->qhd", d_s, k)
            d_k = torch.einsum("hqk,qhd->khd", d_s, query[at].double())
            d_v = torch.einsum("hqk,qhd->khd", p, grad)
            for whole, part in ((found[1], d_k), (found[2], d_v)):
                whole[keys] += part.unflatten(1, (-1, repeat)).sum(2)
        return tuple(x.to(query.dtype) for x in found)


@pytest.fixture
def kernels(monkeypatch):
    """Puts some in place of PyTorch's, for tensors on the CPU."""

    def use(made: Kernels) -> Kernels:
        monkeypatch.setattr(varlen, "FORWARD", made.forward)
        monkeypatch.setattr(varlen, "BACKWARD", made.backward)
        monkeypatch.setattr(varlen, "on_device", lambda device: True)
        monkeypatch.setattr(varlen, "_right", lambda *of: True)
        monkeypatch.setattr(varlen, "DTYPES", varlen.DTYPES | {torch.float64})
        monkeypatch.setattr(groups, "GRID_UP_TO", 0.0)
        monkeypatch.setattr(groups, "PARTS_FROM", 1e9)
        return made

    return use


def gradients(attend, inputs, pull):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = attend(*inputs)
    return [out.detach(), *torch.autograd.grad((out * pull).sum(), inputs)]


GROUPS = [
    ([5, 1, 9], [[4, 1, 7], [1], [3, 3]]),  # a group without tokens of its own
    ([3], [[1, 1]]),  # and nothing but such
    ([1, 1], [[2], [2]]),  # one query everywhere
    ([40, 2], [[1, 30], [20, 2, 2, 2]]),
    ([300, 140], [[70, 200, 1], [130]]),  # several blocks of keys
]


def inputs_of(prompts, completions, dtype, kv_heads, device="cpu"):
    packed = pack_groups(
        [[1] * n for n in prompts], [[[1] * n for n in group] for group in completions], device
    )
    noise = torch.Generator().manual_seed(1)
    total = packed.input_ids.numel()
    made = [torch.randn(1, h, total, 8, generator=noise) for h in (HEADS, kv_heads, kv_heads)]
    # As models hand them over: heads of a token lie side by side.
    made = [(2 * x).transpose(1, 2).contiguous().transpose(1, 2) for x in made]
    pull = torch.randn(1, total, HEADS, 8, generator=noise)
    return packed, [x.to(device, dtype) for x in made], pull.to(device, dtype)


def by_definition(prompts, completions, inputs, pull):
    inner = [n - 1 for group in completions for n in group]
    owners = [p for p, group in enumerate(completions) for _ in group]
    seen = varlen._visible(prompts, inner, owners).to(pull.device)

    def attend(q, k, v):
        k, v = (x.repeat_interleave(HEADS // x.shape[1], 1) for x in (k, v))
        s = (q @ k.transpose(2, 3) * 0.3).masked_fill(~seen, float("-inf"))
        return (s.softmax(3) @ v).transpose(1, 2)

    return gradients(attend, [x.double() for x in inputs], pull.double())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("prompts", "completions"), GROUPS[:4])
def test_three_calls_are_attention_of_groups(
    prompts, completions, kv_heads, dtype, padded, kernels
):
    used = kernels(Kernels(padded))
    packed, inputs, pull = inputs_of(prompts, completions, dtype, kv_heads)
    found = gradients(lambda *x: packed.layout.attend(0, *x, 0.3), inputs, pull)
    parts = 3 if any(n > 1 for group in completions for n in group) else 1
    assert used.calls == ["forward"] * parts + ["backward"] * parts
    wanted = by_definition(prompts, completions, inputs, pull)
    loose = 1e-6 if dtype == torch.float64 else ROUNDING[dtype]  # normalisers are float32
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).norm() <= loose * b.norm()


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_model_has_the_gradient_that_it_has_with_a_mask(recomputed, kernels):
    """Through layers of our own and, recomputed in the backward pass, Transformers'."""
    used = kernels(Kernels())
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=20, hidden_size=48, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=HEADS, num_key_value_heads=2, initializer_range=0.2,
            attn_implementation=NAME,
        )
    ).double().train()  # fmt: skip
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    packed = pack_groups([[1, 2, 3, 4], [5, 6]], [[[3, 4, 5], [9]], [[7, 7, 7, 7]]])
    found = []
    for on in (True, False):
        varlen.ON = on
        try:
            with fast_layers(model):
                hidden = hidden_states(model, packed.input_ids, packed.position_ids, packed.layout)
                model.zero_grad()
                model.lm_head(hidden).square().sum().backward()
        finally:
            varlen.ON = True
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert len(used.calls) == 2 * 3 * (3 if recomputed else 2)
    assert (found[0] - found[1]).norm() <= 1e-6 * found[1].norm()


def test_what_a_query_sees_by_hand():
    """Prompts of 2 and 1 tokens; completions of 2 and 0 for the first, 1 for the second."""
    seen = varlen._visible([2, 1], [2, 0, 1], [0, 0, 1]).int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [0, 0, 1, 0, 0, 1],
    ]


@real
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize(("prompts", "completions"), GROUPS)
def test_the_kernels_of_a_gpu_are_attention_of_groups(prompts, completions, kv_heads, dtype):
    packed, inputs, pull = inputs_of(prompts, completions, dtype, kv_heads, "cuda")
    assert varlen.takes(*(x[0].transpose(0, 1) for x in inputs))
    found = gradients(lambda *x: packed.layout.attend(0, *x, 0.3), inputs, pull)
    wanted = by_definition(prompts, completions, inputs, pull)
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).norm() <= ROUNDING[torch.bfloat16] * b.norm()


@pytest.mark.parametrize("padded", [False, True])
def test_several_prompts_are_prefilled_by_one_call(padded, kernels):
    used = kernels(Kernels(padded))
    lengths, kv_heads = [4, 1, 6], 2
    shape = KeyValueShape(1, kv_heads, 8, torch.float64, torch.device("cpu"))
    noise = torch.Generator().manual_seed(0)
    sizes = (HEADS, kv_heads, kv_heads)
    given = [torch.randn(1, h, 11, 8, dtype=torch.float64, generator=noise) for h in sizes]
    found = []
    for on in (True, False):
        varlen.ON = on
        try:
            arena = Arena(shape)
            arena.reserve(3, 6, 6)
            out = PrefillLayout(arena, 0, lengths, torch.device("cpu")).attend(0, *given, 0.3)
        finally:
            varlen.ON = True
        found.append((out, arena.keys(0), arena.values(0)))
    assert used.calls == ["forward"]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_what_the_kernels_do_not_take_goes_the_other_way(kernels):
    kernels(Kernels())
    q, k, v = (torch.zeros(4, h, 64, dtype=torch.bfloat16) for h in (6, 2, 2))
    assert varlen.takes(q, k, v)
    assert not varlen.takes(q.float(), k.float(), v.float())
    assert not varlen.takes(q, k.half(), v) and not varlen.takes(q, k, v.half())
    assert not varlen.takes(q, k, v[..., :32])
    assert not varlen.takes(*(x[..., :60] for x in (q, k, v)))
    assert not varlen.takes(*(x.repeat(1, 1, 4) for x in (q, k, v)))


def test_without_a_gpu_nothing_is_taken():
    varlen.on_device.cache_clear()
    assert not varlen.on_device(torch.device("cpu"))
    q, k, v = (torch.zeros(4, h, 64, dtype=torch.bfloat16) for h in (6, 2, 2))
    assert not varlen.takes(q, k, v)


def check(**changes):
    """The first look at a device, here with kernels written out."""
    made = Kernels()
    for name, change in changes.items():
        setattr(made, name, change(getattr(made, name)))
    return made


@pytest.mark.parametrize("padded", [False, True])
def test_kernels_that_are_right_are_used_and_nothing_is_said(padded, kernels):
    right = varlen._right.__wrapped__
    kernels(Kernels(padded))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert right(torch.device("cpu"), torch.bfloat16, HEADS, 2, 8)


def fails(forward):
    def instead(*args, **settings):
        raise RuntimeError("no kernel image is available\nand more")

    return instead


def late(backward):
    """As kernels that take their own part's normaliser for the whole's."""

    def instead(grad_out, query, key, value, out, logsumexp, *others, **settings):
        return backward(grad_out, query, key, value, out, logsumexp + 0.1, *others, **settings)

    return instead


def blank(forward):
    def instead(*args, **settings):
        out, *others = forward(*args, **settings)
        return out.fill_(float("nan")), *others

    return instead


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"forward": fails}, "fail: no kernel image is available$"),
        ({"backward": late}, r"are 0\.1 from"),
        ({"forward": blank}, "are inf from"),
    ],
)
def test_kernels_that_are_wrong_are_not_used_and_it_is_said_once(changes, said, kernels):
    right = varlen._right.__wrapped__
    kernels(check(**changes))
    with pytest.warns(UserWarning, match=said):
        assert not right(torch.device("cpu"), torch.bfloat16, HEADS, 2, 8)
