"""A step on shards is the step of one process, on two gloo ranks and on four."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import shard_worker
import torch
from safetensors.torch import load_file
from shard_worker import (
    CASES,
    CRITICS,
    SAVED,
    Case,
    alone,
    begun,
    criticised,
    imitated,
    plain_update,
    policy_alone,
    resumed,
    trained,
    weights_of,
)
from test_learner import batch
from tiny_policy import tiny_model

from lydite.config import UserError
from lydite.model.loading import LoraConfig, ModelConfig, load_policy
from lydite.model.saving import save_policy
from lydite.model.scoring import score
from lydite.model.shards import blocks_of
from lydite.model.tensor_parallel import split_products
from lydite.objective.objective import Objective
from lydite.rollout.select import local_engine
from lydite.train.checkpoint import load_checkpoint
from lydite.train.learner import Learner
from lydite.train.optimizer import OptimizerConfig
from lydite.train.ranks import ALONE
from lydite.train.sharding import ShardingConfig


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks and four found, started once."""
    folder = tmp_path_factory.mktemp("shards")
    paths = [str(Path(shard_worker.__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, shard_worker.__file__, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    found = {**torch.load(folder / "found-4.pt"), **torch.load(folder / "found-2.pt")}
    return {**found, "folder": folder}


@pytest.mark.parametrize("name", CASES)
def test_a_step_on_shards_is_that_of_one_process(found, name):
    case = CASES[name]
    expected = trained(case, alone(case), (0, 1, 2))
    ours = found[name]
    for mine, theirs in zip(ours["metrics"], expected["metrics"], strict=True):
        assert theirs["grad_norm"] > 0
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-7)
    assert ours["weights"].keys() == expected["weights"].keys()
    for weight, tensor in expected["weights"].items():
        torch.testing.assert_close(ours["weights"][weight], tensor, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_judges_and_learns_on_shards(found, name):
    case, kind = CRITICS[name]
    expected = criticised(case, kind, policy_alone(case), ALONE, batch())
    for mine, theirs in zip(found[name]["metrics"], expected["metrics"], strict=True):
        assert theirs["critic_grad_norm"] > 0
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-7)
    for part in ("weights", "critic"):
        assert found[name][part].keys() == expected[part].keys()
        for weight, tensor in expected[part].items():
            torch.testing.assert_close(found[name][part][weight], tensor, rtol=1e-6, atol=1e-9)


def test_a_model_is_read_row_by_row_where_its_file_allows_it(found):
    for name, by in {
        "saved False": "rows",
        "saved True": "rows",
        "experts False": "spread",
        "falcon False": "rows",
        "saved products False": "rows",
    }.items():
        ours = found["read"][name]
        assert ours["by"] == by
        plain = load_policy(
            ModelConfig(path=str(found["folder"] / f"{name.rpartition(' ')[0]} model"))
        )
        # Tried by passes through shards, where no rank has the whole model.
        assert ours["flat"] == plain.not_flat and plain.flat == (name != "falcon False")
        weights = {
            n.removeprefix("base_model.model.").replace(".base_layer.", "."): tensor
            for n, tensor in ours["weights"].items()
            if ".lora_" not in n
        }
        assert weights.keys() == dict(plain.model.named_parameters()).keys()
        for weight, tensor in weights.items():
            torch.testing.assert_close(
                tensor, plain.model.get_parameter(weight).data, rtol=0, atol=0
            )
        # New adapters change nothing yet.
        expected = score(plain, [[7, 8, 9]], [[[10, 11], [12, 13, 14]]])[0]
        torch.testing.assert_close(ours["logprobs"], expected.detach(), rtol=1e-6, atol=1e-6)
    adapters = {n: t for n, t in found["read"]["saved True"]["weights"].items() if ".lora_" in n}
    for name, tensor in adapters.items():
        if "lora_B" in name:
            assert not tensor.any()
        else:  # Uniform up to 1/sqrt(inputs), as PEFT makes them.
            bound = tensor.shape[1] ** -0.5
            assert 0.8 * bound < float(tensor.detach().abs().max()) <= bound
    assert len({float(t.detach().flatten()[0]) for n, t in adapters.items() if "lora_A" in n}) > 10


def test_products_lie_over_ranks_by_the_plan(found):
    cut = found["read"]["saved products False"]["cut"]
    layer = "model.layers.0."
    assert cut[layer + "self_attn.q_proj.weight"] == (16, 32)  # Half of the heads,
    assert cut[layer + "self_attn.k_proj.weight"] == (8, 32)
    assert cut[layer + "mlp.down_proj.weight"] == (32, 32)  # of the inner width
    assert cut["lm_head.weight"] == (26, 32)  # and of the vocabulary.
    assert cut[layer + "input_layernorm.weight"] == (32,)


@pytest.mark.parametrize(
    ("model", "size", "says"),
    [
        (ModelConfig(path="init:llama", init={"num_attention_heads": 4}), 3, "does not divide"),
        (shard_worker.experts(), 2, "fused"),
        (ModelConfig(path="init:bloom", init={"n_head": 4}), 2, "no plan"),
        (tiny_model(lora=LoraConfig(rank=4)), 2, "LoRA"),
    ],
)
def test_models_whose_products_cannot_be_cut_are_refused(model, size, says):
    class Mesh:
        def size(self):
            return size

    config = model.model_copy(update={"vocabulary": tiny_model().vocabulary})
    with pytest.raises(UserError, match=says):
        split_products(load_policy(config).model, Mesh())


def test_imitation_and_preference_on_shards(found):
    expected = imitated(policy_alone(Case()))
    for mine, theirs in zip(found["imitated"]["metrics"], expected["metrics"], strict=True):
        assert theirs["grad_norm"] > 0
        assert mine == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    for weight, tensor in expected["weights"].items():
        torch.testing.assert_close(
            found["imitated"]["weights"][weight], tensor, rtol=1e-6, atol=1e-9
        )


def test_clipping_was_active(found):
    clipped = [m["grad_norm"] > CASES["tied"].max_norm for m in found["tied"]["metrics"]]
    assert all(clipped)


def test_bfloat16_is_computed_with_and_float32_is_kept(found):
    ours = found["halves"]
    model = tiny_model(dtype="bfloat16")
    policy = load_policy(model)
    learner = Learner(policy, OptimizerConfig(lr=1e-6), plain_update())
    # The same numbers go through the same operations.
    for row, expected in zip(ours["logprobs"], learner.logprobs(batch()), strict=True):
        torch.testing.assert_close(row, expected, rtol=0, atol=0)
    start = {n: p.detach().float() for n, p in policy.model.named_parameters()}
    metrics = learner.update(batch(), Objective.parse("grpo").with_limit(16), (0, 1))
    assert ours["metrics"]["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=0.02)
    masters = dict(zip(start, learner.optimizer.masters, strict=True))
    moved = 0.0
    for name, before in start.items():
        step, expected = ours["masters"][name] - before, masters[name].detach() - before
        assert ours["masters"][name].dtype == torch.float32
        assert float((step - expected).detach().abs().mean()) <= 0.1 * 1e-6
        moved += float(step.detach().abs().sum())
    for name, tensor in ours["handed out"].items():
        assert torch.equal(tensor, ours["masters"][name].bfloat16())
    assert ours["handed out"].keys() == start.keys()
    assert moved > 0  # Far less than the spacing of bfloat16, and still there.
    assert {dtype for _, dtype in ours["cut"].values()} == {torch.float32}
    whole = sum(p.numel() for p in start.values())
    held = sum(torch.Size(shape).numel() for shape, _ in ours["cut"].values())
    assert 0.5 * whole <= held <= 0.55 * whole


@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_of_four_ranks_goes_on_on_two_and_on_one(found, name):
    expected = alone(SAVED[name])
    begun(expected, batch())
    one = resumed(alone(SAVED[name]), batch(), found["folder"] / name)
    expected.update(batch(), Objective.parse("grpo+kl").with_limit(16), (1, 2))
    for weight, tensor in weights_of(expected).items():
        products = [found["products of two"]] if name == "saved products" else []
        for ours in (one, found[name], *products):
            torch.testing.assert_close(ours[weight], tensor, rtol=1e-6, atol=1e-9)
    # All but the newest are gone, and nothing half-written is left.
    assert [p.name for p in (found["folder"] / name).iterdir()] == ["step-000001"]


def test_ranks_that_go_on_end_where_they_would_have_to_the_bit(found):
    assert found["to the bit"]


def test_a_checkpoint_that_a_rank_fails_at_leaves_the_one_before(found):
    assert found["failing"]["said"] == ["No space left on device"] * 2
    assert found["failing"]["left"] == ["step-000001"]
    # Killed while it wrote: its peer does not wait for it for ever, and nothing took the name.
    assert torch.load(found["folder"] / "dying.pt") != ""
    newest = load_checkpoint(found["folder"] / "dying")
    assert newest is not None and newest.step == 1
    assert newest.tensors["weight"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_model_is_saved_whole_from_shards(found, tmp_path):
    for name, case in SAVED.items():
        learner = alone(case)
        begun(learner, batch())
        save_policy(learner.policy, tmp_path / name)
        folders = found["folder"] / f"{name} model", tmp_path / name
        ours, theirs = (load_file(folder / "model.safetensors") for folder in folders)
        assert ours.keys() == theirs.keys()
        for weight, tensor in theirs.items():
            torch.testing.assert_close(ours[weight], tensor, rtol=1e-6, atol=1e-9)
        files = [sorted(file.name for file in folder.iterdir()) for folder in folders]
        assert files[0] == files[1]
        configs = [(folder / "config.json").read_text() for folder in folders]
        assert configs[0] == configs[1]


def test_lora_on_a_bfloat16_model(found):
    ours = found["half lora"]
    policy = load_policy(tiny_model(dtype="bfloat16", lora=LoraConfig(rank=4)))
    learner = Learner(policy, OptimizerConfig(lr=1e-6), plain_update())
    metrics = learner.update(batch(), Objective.parse("grpo").with_limit(16), (0, 1))
    assert ours["metrics"]["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=0.05)
    kept = {name: dtype for name, (_, dtype) in ours["cut"].items()}
    assert {dtype for n, dtype in kept.items() if ".lora_" in n} == {torch.float32}
    assert {dtype for n, dtype in kept.items() if ".lora_" not in n} == {torch.bfloat16}
    for name, parameter in policy.model.named_parameters():
        if parameter.requires_grad:
            assert ours["handed out"][name].dtype == parameter.dtype == torch.float32
            torch.testing.assert_close(ours["handed out"][name], parameter.data, rtol=0, atol=3e-6)
            assert "lora_B" not in name or float(ours["handed out"][name].abs().max()) > 5e-7


def test_adapters_alone_are_saved_from_shards(found):
    ours = load_file(found["folder"] / "saved lora adapter" / "adapter_model.safetensors")
    expected = alone(SAVED["saved lora"])
    begun(expected, batch())
    theirs = weights_of(expected)
    assert len(ours) == len(theirs) > 0
    for name, tensor in ours.items():
        full = name.replace(".weight", ".default.weight")
        torch.testing.assert_close(tensor, theirs[full], rtol=1e-6, atol=1e-9)


def test_sharded_weights_do_not_sample():
    policy = load_policy(tiny_model())
    with pytest.raises(UserError, match="sharded weights do not sample"):
        local_engine(replace(policy, shards=object()))


def test_meshes_that_do_not_fit_the_ranks_are_refused():
    assert ShardingConfig().mesh_shape(8) == {"shard": 8}
    assert ShardingConfig(data=2).mesh_shape(8) == {"data": 2, "shard": 4}
    assert ShardingConfig(data=2, shard=4).mesh_shape(8) == {"data": 2, "shard": 4}
    three = ShardingConfig(data=2, tensor=2)
    assert three.mesh_shape(8) == {"data": 2, "shard": 2, "tensor": 2}
    assert [three.share_of(rank, 8) for rank in range(8)] == [(r // 2, 4) for r in range(8)]
    for wrong, ranks in (
        (ShardingConfig(data=3), 8),
        (ShardingConfig(shard=4), 8),
        (ShardingConfig(tensor=3), 8),
    ):
        with pytest.raises(UserError, match="does not make 8 ranks"):
            wrong.mesh_shape(ranks)


def test_blocks_are_found_by_structure():
    policy = load_policy(tiny_model())
    assert blocks_of(policy.model) == list(policy.model.model.layers)
