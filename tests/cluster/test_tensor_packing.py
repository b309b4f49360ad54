"""Tensors through the object store, without Ray."""

from __future__ import annotations

import pickle

import pytest
import torch

from lydite.cluster.packing import buckets, pack, pack_all, unpack, unpack_all


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float64).reshape(2, 3).t(),  # not contiguous
        torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
        torch.tensor(3.0),  # a step count
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.arange(3),
    ],
)
def test_a_tensor_comes_back_to_the_bit(tensor: torch.Tensor) -> None:
    packed = pickle.loads(pickle.dumps(pack(tensor), protocol=5))
    found = unpack(packed)
    assert found.dtype == tensor.dtype and found.shape == tensor.shape
    assert (
        found.contiguous()
        .reshape(-1)
        .view(torch.uint8)
        .equal(tensor.contiguous().reshape(-1).view(torch.uint8))
    )


def test_what_is_read_only_can_be_read() -> None:
    packed = pack(torch.arange(4.0).clone())
    packed.data.flags.writeable = False
    assert unpack(packed).tolist() == [0, 1, 2, 3]


def test_a_parameter_is_packed_without_its_graph() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert not unpack(pack(weight)).requires_grad
    assert unpack_all(pack_all({"w": weight}))["w"].tolist() == [1, 1]


def test_buckets_are_filled_in_order() -> None:
    named = [(f"w{i}", torch.zeros(n, dtype=torch.uint8)) for i, n in enumerate([4, 5, 1, 12, 1])]
    assert [list(bucket) for bucket in buckets(named, 10)] == [["w0", "w1", "w2"], ["w3"], ["w4"]]
    assert list(buckets([], 10)) == []
