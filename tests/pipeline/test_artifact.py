import dataclasses

import pytest

from lydite.config import UserError
from lydite.pipeline.artifact import Lineage, begin, load_artifact, save_artifact

MADE = Lineage("rl", "rl", {"steps": 3}, "parent", {"train": "aa"}, 0)


def test_a_done_stage_is_found_again_by_an_upgraded_lydite(tmp_path):
    save_artifact(tmp_path, MADE)
    upgraded = dataclasses.replace(MADE, lydite="99.0")
    assert load_artifact(tmp_path, upgraded) is not None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": {"steps": 4}}, "steps: 3, 4"),
        ({"parent": "other"}, "the model that it starts from"),
        ({"data": {"train": "bb"}}, "data of train"),
        ({"seed": 1}, "seed: 0, 1"),
    ],
)
def test_other_inputs_are_refused_and_named(tmp_path, change, named):
    save_artifact(tmp_path, MADE)
    with pytest.raises(UserError, match=rf"changed since: {named}\)"):
        load_artifact(tmp_path, dataclasses.replace(MADE, **change))


def test_checkpoints_of_other_inputs_are_refused(tmp_path):
    begin(tmp_path, MADE)
    begin(tmp_path, dataclasses.replace(MADE, seed=1))  # no checkpoint yet: nothing to lose
    (tmp_path / "step-000001").mkdir()
    with pytest.raises(UserError, match="seed"):
        begin(tmp_path, MADE)


def test_a_setting_that_is_new_in_this_version_changes_nothing_at_its_default(tmp_path):
    """As old records meet new code: what the record does not know counts only where it is set."""
    settings = {"stage": {"steps": 3, "optimizer": {"lr": 0.1}, "rewards": [{"kind": "math"}]}}
    old = dataclasses.replace(MADE, settings=settings)
    made = save_artifact(tmp_path, old)
    new = {
        "stage": {
            "steps": 3,
            "fresh": 1,
            "optimizer": {"lr": 0.1, "warmup": 0},
            "rewards": [{"kind": "math", "strict": False}],
        },
        "machine": "cpu",
    }
    plain = {"stage": {"steps": 3, "rewards": [{"kind": "math"}]}}
    found = load_artifact(tmp_path, dataclasses.replace(old, settings=new, given=plain))
    assert found == made, "its fingerprint too, or what follows from it would be done again"
    for given, said in (
        ({"stage": {**plain["stage"], "fresh": 1}}, "stage.fresh: None, 1"),
        ({"stage": {**plain["stage"], "optimizer": {"warmup": 0}}}, "stage.optimizer.warmup"),
        ({"stage": {"rewards": [{"kind": "math", "strict": False}]}}, "stage.rewards.0.strict"),
    ):
        with pytest.raises(UserError, match=said):
            load_artifact(tmp_path, dataclasses.replace(old, settings=new, given=given))


def test_a_finished_stage_moves_to_another_machine_and_a_half_done_one_does_not(tmp_path):
    here = dataclasses.replace(MADE, settings={"steps": 3, "device": "cuda"})
    there = dataclasses.replace(MADE, settings={"steps": 3, "device": "cpu"})
    save_artifact(tmp_path / "done", here)
    assert load_artifact(tmp_path / "done", there) is not None
    begin(tmp_path / "begun", here)
    (tmp_path / "begun/step-000001").mkdir()
    with pytest.raises(UserError, match="device: 'cuda', 'cpu'"):
        begin(tmp_path / "begun", there)
