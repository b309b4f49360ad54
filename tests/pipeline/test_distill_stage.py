"""The stage ``distill``, and stages that bring a model of their own."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from small_runs import MODEL, VOCABULARY, Kill, recipe, rl_stage, run_and_die, sft_stage, write

from lydite.config import UserError, validate
from lydite.model.loading import ModelConfig, load_policy
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.lineage import read_lineage
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import Finished, run_recipe
from lydite.rollout.serve import ModelServer, Served
from lydite.watch.events import Evaluated, StepDone, read_events

SMALL = {
    **MODEL,
    "init": {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
}  # fmt: skip


SERVER = {"kind": "server", "base_url": "http://localhost:8000/v1", "served": "x"}


def distill_stage(**changes: Any) -> dict[str, Any]:
    """Four steps of three groups of two short completions, taught by stage ``rl``."""
    return {
        "kind": "distill", "steps": 4, "prompts_per_step": 3, "group_size": 2, "teacher": "rl",
        "sampling": {"max_tokens": 6}, "optimizer": {"lr": 3e-3}, **changes,
    }  # fmt: skip


def students(folder: Path) -> dict[str, Any]:
    """A teacher, and three students of one smaller start: sampled KL with rewards, exact KL, RL."""
    return recipe(
        [
            sft_stage(steps=2),
            rl_stage(steps=2),
            sft_stage(name="small", steps=2, model=SMALL),
            distill_stage(name="sampled", reward_weight=0.5),
            distill_stage(name="exact", kl="exact", start_from="small"),
            rl_stage(name="alone", start_from="small", steps=2),
        ],
        folder,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    place = tmp_path_factory.mktemp("distill")
    file = write(students(place), place / "recipe.yaml")
    return run_recipe(load_recipe(file), place / "run")


def steps_of(folder: Path, stage: str) -> list[StepDone]:
    events = read_events(folder / "events.jsonl")
    return [e for e in events if e.stage == stage and isinstance(e, StepDone)]


def test_students_descend_from_the_model_of_their_stage(finished: Finished) -> None:
    sizes = {
        stage: json.loads((finished.folder / f"stages/{stage}/model/config.json").read_text())[
            "hidden_size"
        ]
        for stage in ("rl", "small", "sampled", "exact", "alone")
    }
    assert sizes == {"rl": 32, "small": 16, "sampled": 16, "exact": 16, "alone": 16}


def test_every_step_says_how_far_the_student_is_and_what_it_cost(finished: Finished) -> None:
    for stage in ("sampled", "exact"):
        steps = steps_of(finished.folder, stage)
        assert len(steps) == 4
        for step in steps:
            assert math.isfinite(step.metrics["kl_teacher"])
            assert step.metrics["flops"] > 0 and "accuracy" in step.metrics
    costs = {s.name: s.flops for s in finished.stages}
    assert costs["sampled"] == sum(e.metrics["flops"] for e in steps_of(finished.folder, "sampled"))
    assert all(cost > 0 for cost in costs.values())


def test_a_student_is_measured_before_it_learns(finished: Finished) -> None:
    """Not given the score of the stage that happens to stand before it."""
    first = [e for e in read_events(finished.folder / "events.jsonl")
             if isinstance(e, Evaluated) and e.stage == "small" and e.step == 0]  # fmt: skip
    assert len(first) == 1 and first[0].metrics["seconds"] > 0


def test_the_lineage_names_teacher_and_student(finished: Finished) -> None:
    record = json.loads((finished.folder / "stages/sampled/artifact.json").read_text())
    teacher = json.loads((finished.folder / "stages/rl/artifact.json").read_text())
    assert record["data"]["teacher rl"] == teacher["fingerprint"]
    root = read_lineage(finished.folder)
    own = next(child for child in root.children if child.name == "model of small")
    (small,) = own.children
    assert [child.name for child in small.children] == ["sampled", "exact", "alone"]
    lines = small.children[0].lines
    assert f"teacher rl {teacher['fingerprint'][:12]}" in lines


def test_killed_again_and_again_it_ends_as_if_it_never_was(
    finished: Finished, tmp_path: Path
) -> None:
    file = finished.folder.parent / "recipe.yaml"
    for kill in (Kill("event", "step_done sampled 3"), Kill("event", "step_done exact 2")):
        run_and_die(file, tmp_path / "run", kill)
    again = run_recipe(load_recipe(file), tmp_path / "run")
    for stage in ("sampled", "exact"):
        weights = [
            (each.folder / f"stages/{stage}/model/model.safetensors").read_bytes()
            for each in (finished, again)
        ]
        assert weights[0] == weights[1]


def test_a_teacher_behind_a_server_says_what_the_same_one_says_here(
    finished: Finished, tmp_path: Path
) -> None:
    folder = finished.folder / "stages"
    teacher = load_policy(ModelConfig(path=str(folder / "rl/model")))
    found = []
    with ModelServer(Served(teacher, "rl"), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        for index, given in enumerate(
            (
                {"kind": "model", "path": str(folder / "rl/model")},
                {"kind": "server", "base_url": server.url, "served": "rl"},
            )
        ):
            values = recipe([distill_stage(teacher=given, steps=2)], tmp_path)
            values["model"] = {"path": str(folder / "small/model")}
            run_recipe(validate(Recipe, values), tmp_path / str(index))
            found.append([e.metrics for e in steps_of(tmp_path / str(index), "distill")])
        # Where the server is and how it is asked makes no other student.
        given["requests"] = {"concurrency": 1}
        again = recipe([distill_stage(teacher=given, steps=2)], tmp_path)
        again["model"] = values["model"]
        run_recipe(validate(Recipe, again), tmp_path / "1")
        assert len(steps_of(tmp_path / "1", "distill")) == 2
        failed = [c for c in check_recipe(validate(Recipe, values), tmp_path / "x")
                  if c.mark is Mark.FAILED]  # fmt: skip
        server.shutdown()
        thread.join()
    for here, there in zip(*found, strict=True):
        for name in ("kl_teacher", "grad_norm", "reward"):
            assert there[name] == pytest.approx(here[name], abs=1e-5)
    assert not failed


def test_without_references_nothing_is_verified(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text('{"question": "add 1+2"}\n{"question": "add 2+2"}\n')
    values = recipe(
        [
            sft_stage(steps=2),
            distill_stage(task="asked", teacher="model", steps=2, verify=False, start_from="sft"),
        ],
        tmp_path,
    )
    values["tasks"]["asked"] = {"path": str(tmp_path / "asked.jsonl"), "reference": None}
    values["verifier"] = {"kind": "exact"}
    done = run_recipe(validate(Recipe, values), tmp_path / "run")
    metrics = steps_of(done.folder, "distill")[-1].metrics
    assert metrics["groups"] == 3 and metrics["grad_norm"] > 0
    assert metrics["outcome_ungradable"] == 1.0


def test_other_tokens_stop_the_run_before_anything_is_trained(tmp_path: Path) -> None:
    values = students(tmp_path)
    values["stages"][2]["model"] = {**SMALL, "vocabulary": VOCABULARY[::-1]}
    loaded = validate(Recipe, values)
    with pytest.raises(UserError, match=r"stages.sampled.teacher: its tokens are not the student"):
        run_recipe(loaded, tmp_path / "run")
    assert not steps_of(tmp_path / "run", "sft")
    failed = [c for c in check_recipe(loaded, tmp_path / "other") if c.mark is Mark.FAILED]
    assert [c.name for c in failed] == ["models of sampled", "models of exact"]


def test_the_dry_run_shows_each_model(tmp_path: Path) -> None:
    found = {c.name: c for c in check_recipe(validate(Recipe, students(tmp_path)), tmp_path / "r")}
    assert all(check.mark is Mark.OK for check in found.values())
    assert {"model", "model of small", "memory", "memory of small"} <= found.keys()
    assert "KL to the model of rl" in found["distillation of exact"].text
    beside = [name for name in found if any("a model beside" in x for x in found[name].lines)]
    assert beside == ["memory of small"]
    weights = found["memory"].lines[1].removeprefix("weights: ")
    assert f"a model beside it: {weights}" in found["memory of small"].lines


def test_a_teacher_with_a_short_context_is_one_line(tmp_path: Path) -> None:
    teacher = {"kind": "model", **SMALL, "context": 14}
    values = recipe([distill_stage(teacher=teacher)], tmp_path)
    with pytest.raises(UserError, match="its context of 14 tokens is shorter than a prompt with 6"):
        run_recipe(validate(Recipe, values), tmp_path / "run")


@pytest.mark.parametrize(
    ("index", "changes", "said"),
    [
        (3, {"teacher": "r"}, r"stages.3.teacher.stage: no earlier stage 'r' .*one of model, sft"),
        (3, {"teacher": "exact"}, "no earlier stage 'exact' that leaves a model"),
        (3, {"start_from": "small", "model": SMALL}, "stages.3.model: start_from names a model"),
        (3, {"teacher": {"kind": "stag", "stage": "rl"}}, "did you mean 'stage'"),
        (3, {"teacher": None}, "teacher"),
        (4, {"teacher": SERVER}, "kl: exact needs the teacher's weights, and a server has them"),
        (3, {"teacher": SERVER, "sampling": {"temperature": 0.7}}, "at temperature 1; set it to 1"),
        (3, {"teacher": {**SERVER, "base_url": "here"}}, "'here' is no address"),
        (3, {"teacher": {**SERVER, "base_url": "http://a:b@c/v1"}}, "holds a password"),
    ],
)
def test_what_cannot_be_is_one_line(
    index: int, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    values = students(tmp_path)
    values["stages"][index].update(changes)
    with pytest.raises(UserError, match=said):
        validate(Recipe, values)
