"""Loading, saving, LoRA, reference and estimate: what they promise, and what they refuse in one
line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lydite.config import UserError, validate
from lydite.model.attention import NAME
from lydite.model.estimate import Workload, cache_bytes_per_token, estimate_memory
from lydite.model.loading import ModelConfig, load_policy, load_prompting
from lydite.model.policy import Policy
from lydite.model.probe import supports_flat, why_not_flat
from lydite.model.reference import Reference
from lydite.model.render import render_example, render_prompt
from lydite.model.saving import save_policy
from lydite.model.source import find_source
from lydite.model.tiny_tokenizer import build_tokenizer
from lydite.model.value import ValueModel
from lydite.types import Message, Problem

WORDS = list("0123456789+= ")
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
TWO_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = torch.arange(11, 20)[None]


def config(**settings: Any) -> ModelConfig:
    values = {"path": "init:llama", "init": SMALL, "vocabulary": WORDS, **settings}
    return validate(ModelConfig, {k: v for k, v in values.items() if v is not None})


def logits(model: Any) -> torch.Tensor:
    """Of a plain forward pass, whatever the model's attention is set to."""
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        found: torch.Tensor = model(IDS, use_cache=False).logits
    model.set_attn_implementation(before)
    return found


def refused(**settings: Any) -> str:
    with pytest.raises(UserError) as error:
        load_policy(config(**settings))
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    return message


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "qwen2",
        "qwen3",
        "mistral",
        "gemma3_text",
        "gpt2",
        "opt",
        "phi",
        "granite",
        "cohere",
    ],
)
def test_architectures_that_run_flat(name: str) -> None:
    policy = load_policy(config(path=f"init:{name}", init=TWO_LAYERS))
    assert policy.flat, policy.not_flat
    assert policy.model.config._attn_implementation == NAME
    assert policy.model.training


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gemma2", "attn_logit_softcapping is set"),
        ("falcon", "0 of its 2 layers"),
        ("bloom", "0 of its 2 layers"),
    ],
)
def test_architectures_that_do_not_are_told_apart(name: str, reason: str) -> None:
    policy = load_policy(config(path=f"init:{name}", init=TWO_LAYERS))
    assert not policy.flat and reason in policy.not_flat
    assert policy.model.config._attn_implementation != NAME
    assert torch.isfinite(policy.model(IDS, use_cache=False).logits).all()


def test_the_probe_sees_a_wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(config(init={}))
    assert supports_flat(policy.model)
    from lydite.model import probe

    right = probe._TwoSequences.attend
    monkeypatch.setattr(
        probe._TwoSequences,
        "attend",
        lambda self, layer, q, k, v, scale: right(self, layer, q, k, v, 3 * scale),
    )
    assert "its logits differ" in why_not_flat(policy.model)
    assert policy.model.config._attn_implementation == NAME


def test_sliding_window_bounds_the_flat_context() -> None:
    window = {**SMALL, "sliding_window": 64}
    assert load_policy(config(path="init:mistral", init=window)).context == 64
    longer = load_policy(config(path="init:mistral", init=window, context=128))
    assert longer.context == 128 and "past its attention window of 64" in longer.not_flat


def test_new_weights_follow_the_seed_and_leave_the_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, again, other = (load_policy(config(), seed=s).model for s in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))


def test_new_models_take_vocabulary_length_and_gqa_from_the_recipe() -> None:
    policy = load_policy(config(init={**SMALL, "num_key_value_heads": 1}, context=77))
    shape = policy.model.config
    assert shape.vocab_size == len(policy.tokenizer)
    assert (shape.eos_token_id, shape.num_key_value_heads, shape.head_dim) == (
        policy.tokenizer.eos_token_id,
        1,
        16,
    )
    assert policy.context == shape.max_position_embeddings == 77


def test_dropout_is_off_in_training() -> None:
    policy = load_policy(config(path="init:gpt2", init=TWO_LAYERS))
    assert policy.model.training
    assert torch.equal(logits(policy.model), logits(policy.model))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "init:lama"}, "did you mean init:llama"),
        (
            {"init": {"hiden_size": 3}},
            "llama has no setting 'hiden_size'; did you mean 'hidden_size'",
        ),
        ({"init": {"hidden_size": 30, "num_attention_heads": 4}}, "model.init: llama refuses it"),
        (
            {"path": "./no/folder", "vocabulary": None, "init": None},
            "model.path: no folder ./no/folder",
        ),
        ({"path": "a/b/c", "vocabulary": None, "init": None}, "model.path: no folder a/b/c"),
        ({"path": "x.gguf", "vocabulary": None, "init": None}, "model.path: no file x.gguf"),
        (
            {"path": "package:no_such/x.gguf", "vocabulary": None, "init": None},
            "no installed package 'no_such'",
        ),
        (
            {"path": "package:tokenizers/x.gguf", "vocabulary": None, "init": None},
            "no file package:tokenizers",
        ),
        ({"vocabulary": None}, "a new model needs a tokenizer"),
        ({"path": "some/model"}, "vocabulary is for a new model"),
        ({"tokenizer": "x"}, "tokenizer and vocabulary are both given"),
        (
            {"context": 4096, "init": {**SMALL, "max_position_embeddings": 32}},
            "model.context: 4096 is past",
        ),
        ({"init": {**SMALL, "vocab_size": 5}}, "they do not belong together"),
        (
            {"lora": {"targets": ["lm_head", "q_proj"]}},
            "model.lora.targets: the language-model head",
        ),
        ({"lora": {"targets": ["nothing"]}}, "model.lora.targets: ['nothing'] fits no module"),
    ],
)
def test_wrong_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    assert message in refused(**settings)


def test_hub_out_of_reach_and_bad_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"vocabulary": None, "init": None}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "looked for on the hub" in refused(path="nobody/no-model", **plain)
    assert "has no config.json" in refused(path=str(tmp_path), **plain)
    (tmp_path / "config.json").write_text("{broken")
    assert "cannot load" in refused(path=str(tmp_path), **plain)
    (tmp_path / "x.gguf").write_bytes(b"not gguf")
    assert "cannot load" in refused(path=str(tmp_path / "x.gguf"), **plain)
    assert "is a file" in refused(path=str(tmp_path / "config.json"), **plain)


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def away(self: object, name: str, timeout: float) -> None:
        asked.append(name)
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", away)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    said = refused(path="nobody/no-model-here", vocabulary=None, init=None)
    assert said.startswith("model.path: cannot load nobody/no-model-here (no such folder here")
    assert "which cannot be reached" in said and asked == ["nobody/no-model-here"]


@pytest.mark.parametrize(("package", "settings"), [("peft", {"lora": {}})])
def test_missing_extra_is_named(
    package: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert f"pip install 'lydite[{package}]'" in refused(**settings)


def test_saved_model_loads_anywhere_and_comes_back(tmp_path: Path) -> None:
    policy = load_policy(config(context=100))
    folder = tmp_path / "deep" / "model"
    save_policy(policy, folder)
    save_policy(policy, folder)
    assert [p.name for p in folder.parent.iterdir()] == ["model"]
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.equal(logits(plain), logits(policy.model))
    assert plain.generation_config.eos_token_id in (
        [policy.tokenizer.eos_token_id],
        policy.tokenizer.eos_token_id,
    )
    again = load_policy(validate(ModelConfig, {"path": str(folder)}))
    assert (again.stop_ids, again.end_id, again.context, again.chat) == (
        policy.stop_ids, policy.end_id, 100, True,
    )  # fmt: skip
    problem = Problem("p", "1+1", (Message("user", "1+1"),))
    assert render_prompt(again, problem) == render_prompt(policy, problem)


def test_a_failed_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(config())
    folder = tmp_path / "model"
    save_policy(policy, folder)
    before = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.add_(1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(UserError, match=r"cannot write the model to .*No space left"):
        save_policy(policy, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert os.listdir(tmp_path) == ["model"]


def adapted(**settings: Any) -> Policy:
    """A LoRA policy whose adapters do something."""
    policy = load_policy(config(lora={"rank": 2, **settings}))
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    return policy


def test_lora_trains_only_adapters_and_starts_at_the_base() -> None:
    base = load_policy(config())
    policy = load_policy(config(lora={"rank": 2}))
    trained = {n for n, p in policy.model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert not any("lm_head" in name for name in trained)
    assert torch.allclose(logits(policy.model), logits(base.model))
    assert policy.head[0].shape == base.head[0].shape
    assert policy.head_scale(0.5).temperature == 0.5


def test_saving_lora_merges_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    policy = adapted()
    before = {n: p.clone() for n, p in policy.model.named_parameters()}
    expected = logits(policy.model)
    save_policy(policy, tmp_path / "model")
    assert torch.allclose(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model")), expected, atol=1e-5
    )
    assert all(torch.equal(p, before[n]) for n, p in policy.model.named_parameters())
    assert torch.equal(logits(policy.model), expected)


def test_reference_stays_while_the_policy_moves() -> None:
    policy = load_policy(config())
    start = logits(policy.model)
    reference = Reference(policy)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(3)
    with reference.active() as model:
        assert torch.equal(logits(model), start)
        assert not any(p.requires_grad for p in model.parameters())
    assert not torch.allclose(logits(policy.model), start)


def test_reference_of_lora_is_the_base() -> None:
    pytest.importorskip("peft")
    policy = adapted(dropout=0.5)
    reference, base = Reference(policy), load_policy(config()).model
    with reference.active() as model:
        assert torch.allclose(logits(model), logits(base))
    assert policy.model.training
    policy.model.eval()
    assert not torch.allclose(logits(policy.model), logits(base))
    assert any(p.requires_grad for p in policy.model.parameters())


def moved(policy: Policy, by: float) -> torch.Tensor:
    """The policy's logits after every trained weight has moved."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.add_(by)
    return logits(policy.model.eval())


@pytest.mark.parametrize("lora", [None, {"rank": 2, "dropout": 0.5}])
def test_a_refreshed_reference_is_the_policy_as_it_was_then(lora: dict[str, Any] | None) -> None:
    if lora:
        pytest.importorskip("peft")
    policy = load_policy(config(lora=lora))
    reference = Reference(policy)
    assert reference.state_tensors() == {}
    then = moved(policy, 0.02)
    reference.refresh()
    saved = {name: tensor.clone() for name, tensor in reference.state_tensors().items()}
    assert len(saved) == sum(p.requires_grad for p in policy.model.parameters())
    now = moved(policy, 0.02)
    policy.model.train()
    with reference.active() as model:
        assert torch.equal(logits(model), then)
    assert policy.model.training
    assert torch.equal(logits(policy.model.eval()), now) and not torch.equal(now, then)

    # A restart loads the parent's weights, and the reference from the checkpoint.
    other = load_policy(config(lora=lora))
    resumed = Reference(other)
    resumed.load_state_tensors({"weight.x": torch.zeros(1), **saved})
    moved(other, 0.5)
    with resumed.active() as model:
        assert torch.equal(logits(model), then)

    reference.refresh()
    with reference.active() as model:
        assert torch.equal(logits(model), now)


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_gradient_checkpointing_changes_no_gradient(lora: dict[str, int] | None) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = load_policy(config(gradient_checkpointing=checkpointing, lora=lora)).model
        model.set_attn_implementation("sdpa")
        model(IDS, labels=IDS, use_cache=False).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert gradients[0] and len(gradients[0]) == len(gradients[1])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))


def test_estimate_counts_what_is_loaded(tmp_path: Path) -> None:
    for settings in ({}, {"lora": {"rank": 2}}, {"dtype": "bfloat16"}):
        asked = config(**settings)
        model = load_policy(asked).model
        found = estimate_memory(asked, Workload(cache_tokens=10, train_tokens=64))
        parameters = list(model.parameters())
        assert found.parameters == sum(p.numel() for p in parameters)
        assert found.trainable == sum(p.numel() for p in parameters if p.requires_grad)
        assert found.weights == sum(p.numel() * p.element_size() for p in parameters)
    adapted_one = config(lora={"rank": 2})
    assert estimate_memory(adapted_one, Workload(10, 64, reference=True)).reference == 0
    renewed = Workload(10, 64, reference=True, refreshed=True)
    adapter = [p for p in load_policy(adapted_one).model.parameters() if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in adapter)
    assert estimate_memory(adapted_one, renewed).reference == size > 0
    for settings in ({}, {"lora": {"rank": 2}}, {"dtype": "bfloat16"}):
        policy = load_policy(config(**settings))
        kinds: tuple[Literal["model", "head"], ...] = ("model", "head")
        for kind in kinds:
            trained = [
                p for p in ValueModel(policy, kind == "model").parameters() if p.requires_grad
            ]
            critic = estimate_memory(config(**settings), Workload(10, 64, critic=kind)).critic
            # weights and two moments, and for two bytes a master
            assert critic == sum(p.numel() * (12 if p.element_size() == 4 else 14) for p in trained)
        assert estimate_memory(config(**settings), Workload(10, 64)).critic == 0
    packing, plain = (
        estimate_memory(config(), Workload(10**9, 64, packed=packed)) for packed in (True, False)
    )
    assert packing.total - plain.total == packing.packed == packing.weights
    assert estimate_memory(config(), Workload(10**9, 64, packed=True), "cuda").packed == 0
    save_policy(load_policy(config()), tmp_path / "model")
    local = estimate_memory(
        validate(ModelConfig, {"path": str(tmp_path / "model")}), Workload(10, 64)
    )
    assert local == estimate_memory(config(), Workload(10, 64))


def test_what_a_sharded_model_has_whole_at_one_time() -> None:
    tokens = load_policy(config()).model.config.vocab_size
    root = tokens * 32 + 32
    block = 4 * 32 * 32 + 3 * 32 * 48 + 2 * 32
    whole = root + 2 * block
    assert estimate_memory(config(), Workload(10, 64)).gathered == 4 * whole + 8 * block
    half = estimate_memory(config(dtype="bfloat16"), Workload(10, 64))
    assert half.gathered == 2 * whole + 6 * block
    # Of each product of a block, two adapters of rank 2.
    adapters = 2 * (4 * (32 + 32) + 3 * (32 + 48))
    adapted = estimate_memory(config(lora={"rank": 2}), Workload(10, 64))
    assert adapted.gathered == 4 * (whole + 2 * adapters) + 8 * adapters


def test_prompting_renders_as_the_policy_does_without_weights() -> None:
    asked = config(context=50)
    policy, prompting = load_policy(asked), load_prompting(asked)
    problem = Problem("p", "1+1", (Message("user", "1+1"),))
    assert render_example(prompting, problem, "2") == render_example(policy, problem, "2")
    assert (prompting.context, prompting.stop_ids) == (policy.context, policy.stop_ids)
    assert {str(p.device) for p in prompting.model.parameters()} == {"meta"}


def test_estimate_by_hand() -> None:
    """16 bytes a parameter in bfloat16 (ZeRO); OPT-13B caches 800 KiB a token (2309.06180)."""
    found = estimate_memory(config(dtype="bfloat16"), Workload(0, 0, reference=True))
    assert found.weights + found.gradients + found.optimizer == 16 * found.parameters
    assert found.reference == 2 * found.parameters
    from transformers import OPTConfig

    opt = OPTConfig(hidden_size=5120, num_hidden_layers=40, num_attention_heads=40)
    assert cache_bytes_per_token(opt, torch.float16) == 800 * 1024
    tokens, hidden, layers = 64, 32, 2
    head = 3 * 4 * tokens * len(load_policy(config()).tokenizer)
    full = estimate_memory(config(dtype="bfloat16"), Workload(0, tokens)).activations
    less = estimate_memory(
        config(dtype="bfloat16", gradient_checkpointing=True), Workload(0, tokens)
    ).activations
    assert full == 34 * tokens * hidden * layers + head
    assert less == (2 * layers + 34) * tokens * hidden + head
    assert dict(found.rows())["weights"].endswith("KiB")


def test_a_package_file_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carries_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "w.gguf").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path)
    source = find_source("package:carries_weights/w.gguf")
    assert (source.location, source.gguf) == (str(package), "w.gguf")


def test_gguf_becomes_a_plain_model_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gguf = pytest.importorskip("gguf")
    _write_gguf(gguf, tmp_path / "tiny.gguf")
    tokenizer = build_tokenizer(WORDS)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    asked = validate(
        ModelConfig, {"path": str(tmp_path / "tiny.gguf"), "tokenizer": str(tmp_path / "tokenizer")}
    )
    policy = load_policy(asked)
    assert capfd.readouterr() == ("", "")
    assert policy.flat, policy.not_flat
    assert policy.model.get_output_embeddings().weight is policy.model.get_input_embeddings().weight
    save_policy(policy, tmp_path / "model")
    assert torch.equal(
        logits(AutoModelForCausalLM.from_pretrained(tmp_path / "model")), logits(policy.model)
    )


def _write_gguf(gguf: Any, path: Path) -> None:
    """A Llama of one layer with tied embeddings and random weights."""
    vocabulary, hidden, inner = len(build_tokenizer(WORDS)), 32, 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    shapes = {
        "token_embd.weight": (vocabulary, hidden),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (hidden, hidden),
        "blk.0.attn_k.weight": (hidden // 2, hidden),
        "blk.0.attn_v.weight": (hidden // 2, hidden),
        "blk.0.attn_output.weight": (hidden, hidden),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
