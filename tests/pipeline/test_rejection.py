"""Rejection sampling from end to end: sample, filter, and train the base anew on what is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_runs import Kill, recipe, rl_stage, run_and_die, sft_stage, write

from lydite.config import UserError, validate
from lydite.pipeline.catalogue import find_recipe
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.lineage import Node, read_lineage
from lydite.pipeline.recipe import Recipe, check_tasks, load_recipe
from lydite.pipeline.runner import Finished, run_recipe
from lydite.watch.events import DatasetMade, StepDone, Warned, iterate_events, read_events
from lydite.watch.samples import read_samples

LOOSE = {"cut_off": False, "near_duplicates": None, "per_problem": 2}


def sampling(**changes: Any) -> dict[str, Any]:
    """Three steps of up to eight prompts, three completions each."""
    return {
        "kind": "rejection_sampling", "name": "sample", "samples": 3, "prompts_per_step": 8,
        "sampling": {"max_tokens": 6}, "filters": LOOSE, **changes,
    }  # fmt: skip


def tasks(**more: Any) -> dict[str, Any]:
    return {
        "worked": {"generated": {"count": 40, "worked": "base"}},
        "train": {"generated": {"count": 20}},
        "heldout": {"generated": {"count": 4, "split": "heldout"}},
        "kept": {"from_stage": "sample"},
        **more,
    }


def values(folder: Path, *after: dict[str, Any], **more: Any) -> dict[str, Any]:
    stages = [sft_stage(name="base"), sft_stage(name="cold"), sampling(), *after]
    return recipe(stages, folder, tasks=tasks(**more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Base, cold start, sampling from the latter, and SFT of the base on a mix."""
    place = tmp_path_factory.mktemp("rejection")
    last = sft_stage(name="again", task="mixed", start_from="base", steps=2)
    made = values(place, last, mixed={"mix": {"kept": 2, "worked": 1}})
    file = write(made, place / "recipe.yaml")
    return file, run_recipe(load_recipe(file), place / "run")


def dataset(run: Path) -> Path:
    return run / "stages/sample/dataset.parquet"


def test_the_dataset_holds_what_passed_with_where_it_is_from(whole: Any) -> None:
    run = whole[1].folder
    samples = read_samples(run / "samples/sample")
    assert len(samples) == 60
    assert len({(s.problem_id, s.sample) for s in samples}) == 60
    rows = pq.read_table(dataset(run)).to_pylist()
    by_address = {(s.problem_id, s.sample): s for s in samples}
    cold = json.loads((run / "stages/cold/artifact.json").read_text())
    for row in rows:
        source = by_address[row["problem_id"], row["sample"]]
        assert row["completion"] == source.completion and row["completion"][:1].isdigit()
        assert (row["reward"], row["outcome"]) == (1.0, "correct")
        assert row["id"] == f"{row['problem_id']}:{row['sample']}"
        assert row["prompt"] == [{"role": "user", "content": row["question"]}]
        assert (row["model"], row["seed"], row["stage"]) == (cold["fingerprint"], 0, "sample")
        assert row["reference"] and json.loads(row["parts"]) == source.parts
    # By hand: what is right, each text once a problem, the first two.
    expected = []
    assert len({s.prompt for s in samples}) == len({s.problem_id for s in samples}) == 20
    for problem in dict.fromkeys(s.problem_id for s in samples):
        right: list[str] = []
        for s in samples:
            if s.problem_id == problem and s.reward == 1 and s.completion not in right:
                right.append(s.completion)
        expected += [(problem, text) for text in right[:2]]
    assert [(row["problem_id"], row["completion"]) for row in rows] == expected
    assert 0 < len(rows) < 40


def test_the_report_adds_up_wherever_it_is_told(whole: Any) -> None:
    run = whole[1].folder
    made = next(e for e in read_events(run / "events.jsonl") if isinstance(e, DatasetMade))
    assert list(made.dropped) == ["undecided", "incorrect", "repetition", "duplicate", "balance"]
    assert made.sampled == 60 == made.kept + sum(made.dropped.values())
    artifact = json.loads((run / "stages/sample/artifact.json").read_text())["dataset"]
    stages = json.loads((run / "summary.json").read_text())["stages"]
    assert artifact == stages[2]["dataset"]
    assert artifact == json.loads(pq.read_schema(dataset(run)).metadata[b"lydite"])
    assert artifact == {
        "sampled": 60, "dropped": dict(made.dropped), "kept": made.kept, "problems": made.problems,
    }  # fmt: skip
    assert all("dataset" not in stage for stage in [*stages[:2], stages[3]])


def test_the_stage_after_it_starts_from_the_base_and_imitates_the_mix(whole: Any) -> None:
    run = whole[1].folder
    records = {
        name: json.loads((run / f"stages/{name}/artifact.json").read_text())
        for name in ("base", "sample", "again")
    }
    assert records["again"]["parent"] == records["base"]["fingerprint"]
    assert list(records["again"]["data"]) == ["mixed"]
    scores = {stage.name: stage.scores for stage in whole[1].stages}
    assert scores["again"]["heldout"].before.scores == scores["base"]["heldout"].after.scores
    assert scores["sample"] == {}
    notes = [e.message for e in read_events(run / "events.jsonl") if isinstance(e, Warned)]
    kept = pq.read_metadata(dataset(run)).num_rows
    assert any(f"mixed: a mix of {kept} of {kept} of kept" in note for note in notes)
    assert (run / "model/model.safetensors").read_bytes() == (
        run / "stages/again/model/model.safetensors"
    ).read_bytes()


REJECTION = "lydite.pipeline.rejection"
KILLS = [
    Kill("before", "lydite.train.rejection:RejectionSampler.step", 2),
    Kill("after", "lydite.train.rejection:RejectionSampler.step"),
    Kill("after", "lydite.train.loop:write_samples"),
    Kill("before", f"{REJECTION}:filter_samples"),
    Kill("before", "lydite.pipeline.dataset:write_atomic"),
    Kill("after", f"{REJECTION}:write_dataset"),
    Kill("before", f"{REJECTION}:save_artifact"),
    Kill("after", f"{REJECTION}:save_artifact"),
    Kill("event", "step_done again 1"),
]


def test_killed_at_any_moment_it_leaves_the_same_dataset_and_samples_no_step_twice_over(
    whole: Any, tmp_path: Path
) -> None:
    file, finished = whole
    out = tmp_path / "run"
    for kill in KILLS:
        run_and_die(file, out, kill)
    run_recipe(load_recipe(file), out)
    assert dataset(out).read_bytes() == dataset(finished.folder).read_bytes()
    weights = "model/model.safetensors"
    assert (out / weights).read_bytes() == (finished.folder / weights).read_bytes()
    assert not list((out / "stages/sample").glob(".*"))
    steps = [
        e.step
        for e in iterate_events(out / "events.jsonl")
        if isinstance(e, StepDone) and e.stage == "sample"
    ]
    assert steps == [1, 2, 3], "a step that was sampled is not sampled again"
    assert [s.as_json()["dataset"] for s in finished.stages if s.dataset] == [
        s["dataset"]
        for s in json.loads((out / "summary.json").read_text())["stages"]
        if "dataset" in s
    ]


def test_a_finished_dataset_is_not_made_again(whole: Any, tmp_path: Path) -> None:
    file, finished = whole
    out = tmp_path / "run"
    shutil.copytree(finished.folder, out)
    before = dataset(out).stat().st_mtime_ns
    shutil.rmtree(out / "samples/sample")
    run_recipe(load_recipe(file), out)
    assert dataset(out).stat().st_mtime_ns == before
    assert not (out / "samples/sample").exists()


def test_samples_that_are_gone_are_drawn_again_to_the_same_result(
    whole: Any, tmp_path: Path
) -> None:
    file, finished = whole
    out = tmp_path / "run"
    shutil.copytree(finished.folder, out)
    shutil.rmtree(out / "stages/sample")
    (out / "samples/sample/step-000002.parquet").unlink()
    run_recipe(load_recipe(file), out)
    assert dataset(out).read_bytes() == dataset(finished.folder).read_bytes()


def test_what_is_sampled_does_not_depend_on_how_many_prompts_go_at_once(tmp_path: Path) -> None:
    """And a second stage that samples the same prompts draws other noise."""
    stages = [
        sft_stage(name="base"), sampling(), sampling(name="more"),
        sampling(name="whole", prompts_per_step=64),
    ]  # fmt: skip
    runs = {}
    for order in ([0, 1, 2], [0, 3]):
        made = recipe([stages[i] for i in order], tmp_path, name=f"run{len(order)}")
        run = run_recipe(validate(Recipe, made), tmp_path / f"run{len(order)}")
        for i in order[1:]:
            name = stages[i]["name"]
            rows = read_samples(run.folder / "samples" / name)
            runs[name] = {(s.problem_id, s.sample): s.completion for s in rows}
    assert runs["sample"] == runs["whole"]
    assert runs["sample"].keys() == runs["more"].keys() and runs["sample"] != runs["more"]


def test_a_run_may_leave_a_dataset_alone(tmp_path: Path) -> None:
    made = recipe([sampling(filters={**LOOSE, "correct": False})], tmp_path)
    run = run_recipe(validate(Recipe, made), tmp_path / "run")
    assert not run.model.exists()
    files = read_events(run.folder / "events.jsonl")[-1].files
    assert files["dataset sample"] == str(dataset(run.folder)) and "model" not in files
    table = pq.read_table(dataset(run.folder))
    assert json.loads(table.schema.metadata[b"lydite"])["kept"] == table.num_rows > 0


def test_nothing_kept_is_said_with_what_dropped_it(tmp_path: Path) -> None:
    made = recipe([sampling(filters={"length": {"at_least": 99}, "correct": False})], tmp_path)
    with pytest.raises(UserError, match=r"none of 60 completions was kept \(dropped: .*length"):
        run_recipe(validate(Recipe, made), tmp_path / "run")


@pytest.mark.parametrize(
    ("stages", "more", "message"),
    [
        ([sampling(), sft_stage(start_from="sample")], {}, "'sample' leaves a dataset, not a"),
        ([sft_stage(task="kept"), sampling()], {}, "kept.from_stage: no rejection_sampling stage"),
        ([sft_stage(name="sample"), sft_stage(task="kept")], {}, "there is none"),
        ([sampling(), rl_stage(task="kept")], {}, "only an sft stage can"),
        ([sampling(), rl_stage(task="m")], {"m": {"mix": {"kept": 1}}}, "only an sft stage can"),
        ([sampling(), sampling(name="b", task="kept")], {}, "only an sft stage can"),
        ([rl_stage(task="m")], {"m": {"mix": {"n": 1}}, "n": {"mix": {"train": 1}}}, "a mix itse"),
    ],
)
def test_stages_that_do_not_fit_together_are_refused(
    stages: Any, more: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        validate(Recipe, recipe(stages, tmp_path, tasks=tasks(**more)))


@pytest.mark.parametrize(
    ("task", "held_out", "message"),
    [
        ("m", "train", "evaluation.tasks: 'train' is trained on by stage 'sft'"),
        ("m", "worked", "evaluation.tasks: 'worked' is trained on by stage 'sft'"),
        ("kept", "train", "evaluation.tasks: 'train' is trained on by stage 'sample'"),
        ("n", "heldout", "tasks.n.mix: no task 'nowhere'"),
        ("kept", "other", "evaluation.tasks: 'other' has no source of its own"),
    ],
)
def test_what_a_task_is_made_of_counts_as_trained_on(
    task: str, held_out: str, message: str, tmp_path: Path
) -> None:
    stages = [sampling(), sft_stage(task=task)]
    more = {
        "m": {"mix": {"kept": 1, "worked": 1}}, "n": {"mix": {"nowhere": 1}},
        "other": {"mix": {"heldout": 1}},
    }  # fmt: skip
    if (task, held_out) == ("m", "train"):
        stages = [sampling(task="worked"), sft_stage(task="m")]
        more["m"] = {"mix": {"kept": 1, "train": 1}}
    made = recipe(stages, tmp_path, tasks=tasks(**more))
    made["evaluation"] = {"tasks": [held_out]}
    with pytest.raises(UserError, match=message):
        check_tasks(validate(Recipe, made))


def test_a_mix_serves_rl_too(tmp_path: Path) -> None:
    made = recipe([rl_stage(steps=1, task="m")], tmp_path)
    made["tasks"]["m"] = {"mix": {"train": 1, "worked": 1}}
    run = run_recipe(validate(Recipe, made), tmp_path / "run")
    ids = {s.problem_id.split("/")[0] for s in read_samples(run.folder / "samples/rl")}
    assert ids <= {"train", "worked"} and ids


def test_the_dry_run_says_how_much_is_drawn(whole: Any, tmp_path: Path) -> None:
    checks = {check.name: check for check in check_recipe(load_recipe(whole[0]), tmp_path / "new")}
    assert not [name for name, check in checks.items() if check.mark is Mark.FAILED]
    text = checks["samples of sample"].text
    assert "20 prompts × 3 = 60 completions in 3 steps, at most 360 tokens; at most 40 " in text
    assert checks["examples of again"].mark is Mark.SKIPPED
    assert "prompts of sample" in checks and "prompts of again" not in checks
    assert "heldout apart from worked" in checks and "heldout apart from train" in checks


def test_the_lineage_is_a_tree_of_what_started_from_what(whole: Any) -> None:
    root = read_lineage(whole[1].folder)

    def shape(node: Node) -> Any:
        return {child.name: shape(child) for child in node.children}

    assert shape(root) == {"base": {"cold": {"sample": {}}, "again": {}}}
    base = root.children[0]
    record = json.loads((whole[1].folder / "stages/base/artifact.json").read_text())
    assert record["fingerprint"][:12] in base.title
    assert f"from {record['parent'][:12]}" in base.lines
    assert f"data worked {record['data']['worked'][:12]}, generated" in base.lines
    assert any(record["code"][:12] in line for line in base.lines)
    assert any(record["parent"][:12] in line for line in root.lines), "the model's own"
    again = "\n".join(base.children[1].lines)
    assert "a mix of kept, kept by sample, worked, generated" in again
    assert "of 60 samples" in "\n".join(base.children[0].children[0].lines)


def test_the_lineage_of_an_unfinished_run_says_what_is_missing(whole: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_and_die(whole[0], out, Kill("event", "step_done cold 1"))
    cold = read_lineage(out).children[0].children[0]
    assert cold.title == "cold (sft), not done, begun, 1 step logged"
    with pytest.raises(UserError, match=r"no recipe\.yaml"):
        read_lineage(tmp_path / "nowhere")
    (out / "stages/base/artifact.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_lineage(out)


def test_a_mix_that_asks_a_held_out_question_is_refused(tmp_path: Path) -> None:
    """Two files, so that no name gives it away; straight, and by way of the stage that samples."""
    row = {"question": "add 1+2", "answer": "3", "worked": "3"}
    for name in ("seen", "unseen"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    seen = {"path": str(tmp_path / "seen.jsonl"), "worked": "worked"}
    more = {
        "seen": seen,
        "m": {"mix": {"seen": 1, "worked": 1}},
        "n": {"mix": {"kept": 1, "worked": 1}},
        "heldout": {"path": str(tmp_path / "unseen.jsonl")},
    }  # fmt: skip
    for stages in (
        [rl_stage(task="m")],
        [sft_stage(task="m")],
        [sampling(task="m"), sft_stage(task="n")],
        [sampling(), sft_stage(task="o")],
    ):
        made = recipe(stages, tmp_path, tasks=tasks(**more, o={"mix": {"kept": 1, "seen": 1}}))
        with pytest.raises(UserError, match="1 held-out questions are also trained on"):
            run_recipe(validate(Recipe, made), tmp_path / "run")


def test_a_part_without_anything_to_imitate_is_named_before_the_run(tmp_path: Path) -> None:
    stages = [sampling(), sft_stage(task="m")]
    made = recipe(stages, tmp_path, tasks=tasks(m={"mix": {"kept": 1, "train": 1}}))
    with pytest.raises(UserError, match=r"tasks\.train\.worked: 20 of 20"):
        run_recipe(validate(Recipe, made), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_recipe_that_ships_works_in_small(tmp_path: Path) -> None:
    loose = "{correct: false, cut_off: false, repetition: null, per_problem: 2}"
    small = [
        "model.init={hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}",
        *(f"tasks.{name}.generated.count=24" for name in ("base", "cold_start", "train")),
        "tasks.heldout.generated.count=2",
        *(f"stages.{n}.steps=1" for n in range(3)),
        "stages.2.prompts_per_step=2",
        f"stages.3.filters={loose}",
    ]
    shipped = load_recipe(find_recipe("rejection_sampling"), small)
    run = run_recipe(shipped, tmp_path / "run")
    assert [stage.kind for stage in run.stages] == ["sft", "sft", "rl", "rejection_sampling", "sft"]
    made = run.stages[3].dataset
    assert made is not None and made.sampled == 96 and 12 <= made.kept <= 48
    base = json.loads((run.folder / "stages/base/artifact.json").read_text())
    last = json.loads((run.folder / "stages/imitate/artifact.json").read_text())
    assert last["parent"] == base["fingerprint"]
