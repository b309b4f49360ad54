"""Gradients of embeddings summed where they lie, against autograd's sums."""

import pytest
import torch

from lydite.ops import head
from lydite.ops.head import HeadScale, token_logprobs
from lydite.ops.summed import lookup, summed_in_place

IDS = torch.tensor([[2, 5, 2], [0, 3, 2]])


def table(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(7, 4, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def loss_of(weight, ids, by=lookup):
    """Of a model that is its embedding alone, which is its head too."""
    hidden = by(ids, weight, 0).flatten(0, 1)
    targets = ids.flatten().roll(1)
    return token_logprobs(hidden, weight, None, targets, HeadScale())[0].square().sum()


def plain(ids, weight, padding):
    return torch.nn.functional.embedding(ids, weight, padding_idx=padding)


@pytest.mark.parametrize("tile", [(6, 3), (1 << 20, 4096)])
@pytest.mark.parametrize("tied", [True, False])
def test_sums_over_micro_batches_are_autograds(tile, tied, monkeypatch):
    """The row of the padding, 0, is looked up too: it has the head's gradient alone."""
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", tile[0])
    monkeypatch.setattr(head, "ROWS_AT_ONCE", tile[1])
    ours, theirs = table(), table()
    for ids in (IDS, IDS + 1, IDS.t()):
        if tied:
            loss_of(theirs, ids, plain).backward()
        else:
            plain(ids, theirs, 0).square().sum().backward()
        with summed_in_place([ours]):
            held = ours.grad
            (loss_of(ours, ids) if tied else lookup(ids, ours, 0).square().sum()).backward()
        assert held is None or ours.grad is held, "in the same memory"
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_elsewhere_gradients_are_handed_on():
    weight = table()
    (loss_of(weight, IDS, plain)).backward()
    before = weight.grad.clone()
    (found,) = torch.autograd.grad(loss_of(weight, IDS), [weight])
    torch.testing.assert_close(found, before)
    assert torch.equal(weight.grad, before), "and nothing was added"


def test_another_weight_and_a_narrow_one_are_handed_on():
    narrow, other = table(torch.bfloat16), table()
    held = []
    for weight in (narrow, other):
        weight.register_hook(held.append)
        with summed_in_place([narrow]):
            loss_of(weight, IDS).backward()
    assert len(held) == 2


def test_it_ends_when_the_pass_fails():
    weight = table()
    with pytest.raises(RuntimeError, match="stop"), summed_in_place([weight]):
        raise RuntimeError("stop")
    weight.register_hook(lambda grad: grad * 0)
    loss_of(weight, IDS).backward()
    assert not weight.grad.any()


def test_ids_of_which_all_are_padding():
    weight = table()
    with summed_in_place([weight]):
        lookup(torch.zeros(2, dtype=torch.long), weight, 0).sum().backward()
    assert not weight.grad.any()
