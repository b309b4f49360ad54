import errno

import pytest
import torch

from lydite.train import checkpoint
from lydite.train.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def make(step):
    return Checkpoint(
        step,
        {"a": torch.full((2,), float(step)), "n": torch.tensor(step)},
        {"sampler": {"drawn": step}},
    )


def test_the_newest_comes_back_and_old_ones_go(tmp_path):
    for step in (5, 10, 15):
        save_checkpoint(tmp_path, make(step), keep=2)
    found = load_checkpoint(tmp_path)
    assert found is not None and found.step == 15
    assert found.state == {"sampler": {"drawn": 15}}
    assert torch.equal(found.tensors["a"], torch.full((2,), 15.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000010", "step-000015"]


def test_nothing_there(tmp_path):
    assert load_checkpoint(tmp_path / "none") is None


def test_a_write_that_was_cut_short_is_ignored(tmp_path):
    save_checkpoint(tmp_path, make(5))
    (tmp_path / ".step-000010.partial").mkdir()
    (tmp_path / ".step-000010.partial" / "tensors.safetensors").write_bytes(b"half")
    found = load_checkpoint(tmp_path)
    assert found is not None and found.step == 5
    save_checkpoint(tmp_path, make(10), keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000010"]


def test_a_full_disk_leaves_the_earlier_one(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, make(5))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, make(10))
    assert [p.name for p in tmp_path.iterdir()] == ["step-000005"]


def test_views_and_transposes_survive(tmp_path):
    base = torch.arange(6.0)
    save_checkpoint(tmp_path, Checkpoint(1, {"view": base[2:4], "turned": base.view(2, 3).t()}, {}))
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.tensors["view"].tolist() == [2.0, 3.0]
    assert torch.equal(found.tensors["turned"], base.view(2, 3).t())
