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
        ({"settings": {"steps": 4}}, "settings"),
        ({"parent": "other"}, "parent"),
        ({"data": {"train": "bb"}}, "data"),
        ({"seed": 1}, "seed"),
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
