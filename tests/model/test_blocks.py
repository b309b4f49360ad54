"""Decoder layers of our own forward against Transformers'."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lydite.model.attention import NAME, backbone, hidden_states
from lydite.model.blocks import FastBlocks, is_plain_block
from lydite.ops.decode import KeyValueCache, KeyValueShape
from lydite.ops.packed import can_pack
from lydite.ops.prefill import PrefillLayout

pytestmark = pytest.mark.skipif(
    not can_pack(torch.empty(1)), reason="this build of PyTorch has no packed products"
)
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
}
CPU = torch.device("cpu")


def make(kind: str, **more: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **more)).eval()
    for module in model.modules():
        if "Norm" in type(module).__name__:  # new norms are all ones, which a missing one is too
            module.weight.data.uniform_(0.5, 1.5)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.normal_()
    model.set_attn_implementation(NAME)
    return model


def states(model: PreTrainedModel) -> torch.Tensor:
    """Of two prompts."""
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = KeyValueShape(2, config.num_key_value_heads, dim, model.dtype, CPU)
    cache = KeyValueCache(shape)
    cache.prompts.reserve(2, 7, 7)
    ids = torch.arange(12) * 3 % 40
    positions = torch.cat([torch.arange(7), torch.arange(5)])
    with torch.inference_mode():
        layout = PrefillLayout(cache.prompts, 0, [7, 5], CPU)
        return hidden_states(model, ids, positions, layout)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2}),
        ("llama", {"hidden_act": "gelu", "head_dim": 12}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 12}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fast_blocks_are_the_layers(kind: str, more: dict[str, object], dtype: torch.dtype) -> None:
    model = make(kind, **more).to(dtype)
    want = states(model)
    blocks = FastBlocks(model)
    with torch.inference_mode():
        blocks.pack()
    assert all("forward" in vars(layer) for layer in backbone(model).layers)
    found = states(model)
    blocks.close()
    close = {torch.float32: 2e-5, torch.bfloat16: 0.3}[dtype]
    torch.testing.assert_close(found, want, atol=close, rtol=0)
    assert (found - want).float().abs().mean() < close / 10
    assert not any("forward" in vars(layer) for layer in backbone(model).layers)
    assert torch.equal(states(model), want)


@pytest.mark.parametrize("kind", ["olmo2", "gemma2", "phi3"])
def test_other_kinds_are_left_alone(kind: str) -> None:
    more = {"pad_token_id": 0} if kind == "phi3" else {}
    layers = backbone(make(kind, **more)).layers
    assert not any(is_plain_block(layer) for layer in layers)


def test_changed_layers_are_left_alone() -> None:
    class Adapted(nn.Linear):
        pass

    model = make("llama")
    first, second = backbone(model).layers
    first.mlp.up_proj = Adapted(32, 48, bias=False)
    second.register_forward_hook(lambda *_: None)
    assert not is_plain_block(first) and not is_plain_block(second)
    assert FastBlocks(model).inside == set()
