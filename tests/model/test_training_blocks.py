"""Decoder layers of our own functions for training against Transformers'."""

from __future__ import annotations

import pytest
import torch
from test_blocks import make
from torch import Tensor
from transformers import PreTrainedModel

from lydite.model.attention import backbone, hidden_states
from lydite.model.training_blocks import fast_layers
from lydite.ops.groups import pack_groups


def run(model: PreTrainedModel, fast: bool) -> list[Tensor]:
    """Hidden states of two groups and all gradients."""
    packed = pack_groups(
        [list(range(5)), list(range(3, 10))], [[[11, 12, 13], [14, 15]], [[16, 17, 18, 19]]]
    )
    model.zero_grad()
    with fast_layers(model, fast):
        states = hidden_states(model, packed.input_ids, packed.position_ids, packed.layout)
        weight = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view(states.shape)
        (states * weight).sum().backward()
    grads = {name: p.grad for name, p in backbone(model).named_parameters()}
    assert all(grad is not None for grad in grads.values()), grads
    return [states.detach(), *(grad for grad in grads.values() if grad is not None)]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2}),
        ("llama", {"head_dim": 12, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 12}),
    ],
)
def test_fast_layers_are_the_layers(kind: str, more: dict[str, object]) -> None:
    model = make(kind, **more).double()
    want, found = run(model, fast=False), run(model, fast=True)
    for a, b in zip(found, want, strict=True):
        # Transformers' norms are float32 whatever comes in.
        torch.testing.assert_close(a, b, atol=2e-6 * float(b.abs().max()), rtol=1e-5)


def test_they_are_used_and_given_back() -> None:
    model = make("llama")
    held = backbone(model)
    with fast_layers(model):
        assert all("forward" in vars(layer) for layer in (*held.layers, held.norm))
    with fast_layers(model, on=False):
        assert not any("forward" in vars(layer) for layer in held.layers)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("kind", ["olmo2", "gemma2"])
def test_other_kinds_are_left_alone(kind: str) -> None:
    model = make(kind)
    with fast_layers(model):
        assert not any("forward" in vars(module) for module in model.modules())


def test_layers_that_recompute_or_have_another_activation_are_left_alone() -> None:
    recomputing, gelu = make("llama"), make("llama", hidden_act="gelu")
    recomputing.gradient_checkpointing_enable({"use_reentrant": False})
    for model in (recomputing, gelu):
        with fast_layers(model):
            assert not any("forward" in vars(module) for module in model.modules())


def test_padded_sequences_go_the_layers_own_way() -> None:
    model = make("qwen2")
    model.set_attn_implementation("eager")
    ids = torch.arange(8).view(2, 4)
    want = model(ids).logits
    with fast_layers(model):
        torch.testing.assert_close(model(ids).logits, want, atol=1e-5, rtol=1e-5)


def test_less_is_kept_for_the_backward_pass() -> None:
    model = make("llama")
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = []
    for fast in (False, True):
        held: dict[int, int] = {}

        def hold(tensor: Tensor, held: dict[int, int] = held) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x):
            run(model, fast)
        kept.append(sum(held.values()))
    assert kept[1] < 0.7 * kept[0], kept


def test_a_lookup_that_does_more_is_left_alone() -> None:
    """And one with a padding token has no gradient for it, as before."""
    model = make("llama", pad_token_id=12).double()
    for a, b in zip(run(model, fast=True), run(model, fast=False), strict=True):
        torch.testing.assert_close(a, b, atol=2e-6 * float(b.abs().max()), rtol=1e-5)
    table = backbone(model).embed_tokens
    assert not table.weight.grad[12].any() and table.weight.grad[11].any()
    table.scale_grad_by_freq = True
    with fast_layers(model):
        assert "forward" not in vars(table)
