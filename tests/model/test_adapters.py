"""Adapters as folders: what is merged says what was trained, to the last digit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lydite.config import UserError, validate
from lydite.model.adapters import merge, merged_state
from lydite.model.loading import LoraConfig, ModelConfig, load_frozen, load_policy
from lydite.model.policy import Policy
from lydite.model.saving import save_policy

peft = pytest.importorskip("peft")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.tensor([[5, 9, 12, 7, 20, 3]])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    new = ModelConfig(path="init:llama", init=SHAPE, vocabulary=[*"0123456789+="], context=64)
    save_policy(load_policy(new), tmp_path / "base")
    return tmp_path / "base"


def adapted(path: Path, seed: int = 0, **lora: Any) -> Policy:
    """A policy whose adapters do something, as after training."""
    config = LoraConfig(rank=3, **lora)
    policy = load_policy(ModelConfig(path=str(path), lora=config), seed=seed)
    draw = torch.Generator().manual_seed(seed)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.data = 0.1 * torch.randn(weight.shape, generator=draw)
    return policy


def logits(model: Any) -> Any:
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    plain.set_attn_implementation("eager")
    with torch.no_grad():
        return model(IDS).logits


def test_a_merged_model_says_the_same_in_float64(base: Path) -> None:
    policy = adapted(base)
    model: Any = policy.model.double().eval()
    before = logits(model)
    with model.disable_adapter():
        assert (logits(model) - before).abs().max() > 1e-2, "adapters that do nothing prove nothing"
    plain = merge(policy.model).double().eval()
    assert not any("lora" in name for name, _ in plain.named_parameters())
    torch.testing.assert_close(logits(plain), before, rtol=0, atol=1e-12)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=0)  # It is left as it was.


def test_adapters_alone_load_as_the_merged_model_to_the_bit(base: Path, tmp_path: Path) -> None:
    save_policy(adapted(base), tmp_path / "merged")
    save_policy(adapted(base, save="adapter"), tmp_path / "alone")
    assert not (tmp_path / "alone/model.safetensors").exists()
    ours = load_frozen(ModelConfig(path=str(tmp_path / "alone")))
    theirs = load_frozen(ModelConfig(path=str(tmp_path / "merged")))
    assert ours.flat and ours.stop_ids == theirs.stop_ids
    for name, weight in theirs.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], weight), name
    assert torch.equal(logits(ours.model), logits(theirs.model))
    # New adapters begin with the same noise on either.
    first, second = (
        load_policy(ModelConfig(path=str(tmp_path / name), lora=LoraConfig(rank=2)), seed=5)
        for name in ("alone", "merged")
    )
    for (name, a), (_, b) in zip(
        first.model.named_parameters(), second.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name


def test_adapters_on_adapters_and_peft_reads_them_too(base: Path, tmp_path: Path) -> None:
    save_policy(adapted(base, save="adapter"), tmp_path / "first")
    again = adapted(tmp_path / "first", seed=1, save="adapter")
    expected = merged_state(again.model)
    save_policy(again, tmp_path / "second")
    found = load_frozen(ModelConfig(path=str(tmp_path / "second"))).model.state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    plain = AutoModelForCausalLM.from_pretrained(base)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "first").eval()
    ours = load_frozen(ModelConfig(path=str(tmp_path / "first")))
    torch.testing.assert_close(logits(ours.model), logits(theirs), rtol=1e-4, atol=1e-5)


def test_a_folder_moves_with_its_base_and_says_so_when_that_is_gone(
    base: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    shutil.move(base, tmp_path / "run/base")
    save_policy(adapted(tmp_path / "run/base", save="adapter"), tmp_path / "run/stages/a/model")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    load_frozen(ModelConfig(path=str(tmp_path / "moved/stages/a/model")))
    shutil.rmtree(tmp_path / "moved/base")
    with pytest.raises(UserError, match=r"holds adapters, and the model they go on is not at "):
        load_frozen(ModelConfig(path=str(tmp_path / "moved/stages/a/model")))


def test_adapters_of_another_shape_and_of_a_new_model_are_refused(
    base: Path, tmp_path: Path
) -> None:
    save_policy(adapted(base, save="adapter"), tmp_path / "alone")
    shape = {**SHAPE, "hidden_size": 16}
    new = ModelConfig(path="init:llama", init=shape, vocabulary=[*"0123456789+="], context=64)
    shutil.rmtree(base)
    save_policy(load_policy(new), base)
    with pytest.raises(UserError, match="adapters do not go with this model") as error:
        load_frozen(ModelConfig(path=str(tmp_path / "alone")))
    assert "\n" not in str(error.value)
    lora = LoraConfig(save="adapter")
    with pytest.raises(UserError, match=r"model\.lora\.save: .*this one is new"):
        load_policy(new.model_copy(update={"lora": lora}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "tied"),
        ({"use_rslora": True, "rank_pattern": {"q_proj": 5}, "alpha_pattern": {"q_proj": 7}}, ""),
        ({"bias": "all"}, ""),
    ],
)
def test_what_is_merged_says_the_same_or_is_refused(
    base: Path, settings: dict[str, Any], named: str
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(base)
    assert plain.config.tie_word_embeddings
    config = peft.LoraConfig(**{"r": 3, "target_modules": ["q_proj", "down_proj"], **settings})
    model = peft.get_peft_model(plain, config).double().eval()
    draw = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data += 0.1 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
    if named:
        with pytest.raises(UserError, match=named):
            merge(model)
    else:
        torch.testing.assert_close(logits(merge(model).eval()), logits(model), rtol=0, atol=1e-12)


def test_adapters_of_another_kind_are_refused(base: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(base)
    config = peft.IA3Config(target_modules=["q_proj"], feedforward_modules=[])
    with pytest.raises(UserError, match="IA3"):
        merge(peft.get_peft_model(plain, config))


def test_adapters_alone_of_a_new_model_are_refused_when_the_settings_are_read() -> None:
    with pytest.raises(UserError, match=r"lora\.save: adapters go on a model that is on disk"):
        validate(ModelConfig, {"path": "init:llama", "lora": {"save": "adapter"}})
    validate(ModelConfig, {"path": "init:llama", "lora": {"save": "merged"}})
