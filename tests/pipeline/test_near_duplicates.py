"""Held-out questions that are nearly trained on: said, refused or let be, as the recipe has it."""

import json

import pytest
from small_runs import recipe, rl_stage

from lydite.config import UserError, validate
from lydite.pipeline.dry_run import check_recipe
from lydite.pipeline.problems import load_tasks
from lydite.pipeline.recipe import Recipe

ASKED = "Anna has 12 apples and gives 5 of them to her brother. How many apples has she left now?"
OTHER = "A train leaves at nine and arrives at noon; how long does it take?"


def made(tmp_path, heldout, **evaluation):
    for name, questions in (("a", [ASKED, OTHER]), ("b", heldout)):
        rows = [json.dumps({"question": q, "answer": "7"}) for q in questions]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    tasks = {"train": {"path": str(tmp_path / "a.jsonl")}}
    tasks["heldout"] = {"path": str(tmp_path / "b.jsonl")}
    plain = recipe([rl_stage()], tmp_path, tasks=tasks)
    plain["evaluation"] |= evaluation
    return validate(Recipe, plain)


NEAR = [ASKED.replace("now", "today"), ASKED.replace("12", "40"), "What is 3 + 4?"]


def test_they_are_a_note_of_the_held_out_task(tmp_path):
    tasks = load_tasks(made(tmp_path, NEAR), {})
    (note,) = tasks["heldout"].notes
    assert "2 of 3 held-out questions" in note and "1 in their wording alone" in note
    assert tasks["train"].notes == ()


def test_they_may_be_refused_or_let_be(tmp_path):
    with pytest.raises(UserError, match=r"tasks\.heldout: 2 of 3 .*near_duplicates=refuse"):
        load_tasks(made(tmp_path, NEAR, near_duplicates="refuse"), {})
    assert load_tasks(made(tmp_path, NEAR, near_duplicates="ignore"), {})["heldout"].notes == ()
    apart = load_tasks(made(tmp_path, NEAR[2:], near_duplicates="refuse"), {})
    assert apart["heldout"].notes == ()


def test_problems_that_are_made_are_not_compared(tmp_path):
    plain = validate(Recipe, recipe([rl_stage()], tmp_path))
    assert load_tasks(plain, {})["heldout"].notes == ()
    names = [check.name for check in check_recipe(plain, tmp_path / "run")]
    assert "heldout apart from train" in names and "heldout unlike training" not in names


def test_the_dry_run_shows_pairs(tmp_path):
    found = made(tmp_path, NEAR)
    (check,) = (
        c for c in check_recipe(found, tmp_path / "run") if c.name == "heldout unlike training"
    )
    assert check.text.startswith("2 of 3 held-out questions") and len(check.lines) == 2
