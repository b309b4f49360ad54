"""Stages that train on text, measure and export, from end to end and killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from small_runs import VOCABULARY, Kill, recipe, rl_stage, run_and_die, sft_stage, write
from transformers import AutoModelForCausalLM, AutoTokenizer

from lydite.config import UserError, validate
from lydite.pipeline.dry_run import Mark, check_recipe
from lydite.pipeline.lineage import Node, read_lineage
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.pipeline.runner import run_recipe
from lydite.watch.events import Evaluated, RunDone, read_events
from lydite.watch.intervals import paired_difference

WEIGHTS = "model/model.safetensors"


def pretrain(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "pretrain", "task": "worked", "steps": 4, "batch_size": 2,
        "optimizer": {"lr": 3e-3}, **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Pretraining, two branches of it, an evaluation between and one of all, and an export."""
    place = tmp_path_factory.mktemp("others")
    own = {"tasks": ["worked2"], "samples": 2, "sampling": {"max_tokens": 6, "temperature": 1.0}}
    stages = [
        pretrain(name="base"),
        {"kind": "evaluate", "name": "early", "evaluation": own},
        sft_stage(name="a", steps=2),
        rl_stage(name="b", steps=2, start_from="base"),
        {"kind": "evaluate", "name": "all", "models": ["base", "a", "b"]},
        {"kind": "export", "dtype": "bfloat16", "shard_gb": 2e-5, "start_from": "a"},
    ]
    values = recipe(stages, place)
    values["tasks"]["worked2"] = {"generated": {"count": 6, "split": "heldout", "seed": 9}}
    values["evaluation"]["samples"] = 2
    file = write(values, place / "recipe.yaml")
    return file, run_recipe(load_recipe(file), place / "run").folder


def report(run: Path, stage: str) -> Any:
    return json.loads((run / "stages" / stage / "report.json").read_text())


def test_models_are_compared_in_pairs_on_the_same_problems(whole: Any) -> None:
    run = whole[1]
    found = report(run, "all")
    assert list(found["scores"]) == ["heldout"]
    assert list(found["scores"]["heldout"]) == ["base", "a", "b"]
    pairs = [(each["from"], each["to"]) for each in found["differences"]]
    assert pairs == [("base", "a"), ("base", "b"), ("a", "b")]
    rows = pq.read_table(run / "stages/all/answers.parquet").to_pylist()
    assert len(rows) == 3 * 4 * 2

    def means(model: str) -> dict[str, float]:
        right: dict[str, list[bool]] = {}
        for row in rows:
            if row["model"] == model and row["task"] == "heldout":
                right.setdefault(row["problem_id"], []).append(row["outcome"] == "correct")
        return {name: sum(each) / len(each) for name, each in right.items()}

    for difference in found["differences"]:
        by_hand = paired_difference(means(difference["from"]), means(difference["to"]))
        assert difference["mean"] == pytest.approx(by_hand.mean)
        assert difference["ci95"] == pytest.approx([by_hand.lo, by_hand.hi])
        assert difference["n"] == 4
    texts = {model: [r["completion"] for r in rows if r["model"] == model] for model in "ab"}
    assert texts["a"] != texts["b"], "or it was one model all along"


def test_what_was_measured_before_is_taken_from_there(whole: Any) -> None:
    """The comparison is of the recipe's own evaluation, so all its figures are known already; the
    early one has other problems, and measures.
    """
    events = [e for e in read_events(whole[1] / "events.jsonl") if isinstance(e, Evaluated)]
    compared = [e for e in events if e.stage == "all"]
    assert [e.metrics["seconds"] for e in compared] == [0.0, 0.0, 0.0]
    for event in compared:
        last = [e for e in events if e.stage == event.model][-1]
        assert event.scores == last.scores
    early = [e for e in events if e.stage == "early"]
    assert [(e.model, e.task, e.k) for e in early] == [("base", "worked2", 2)]
    assert early[0].metrics["seconds"] > 0
    assert len(pq.read_table(whole[1] / "stages/early/answers.parquet")) == 12


def test_a_stage_between_leaves_the_model_to_the_next(whole: Any) -> None:
    records = {
        name: json.loads((whole[1] / f"stages/{name}/artifact.json").read_text())
        for name in ("base", "early", "a", "b", "all", "export")
    }
    for name in ("early", "a", "b"):
        assert records[name]["parent"] == records["base"]["fingerprint"]
    assert records["export"]["parent"] == records["a"]["fingerprint"]
    assert records["all"]["data"]["model a"] == records["a"]["fingerprint"]
    files = next(e for e in read_events(whole[1] / "events.jsonl") if isinstance(e, RunDone)).files
    assert {"report early", "report all", "export export"} <= set(files)
    summary = json.loads((whole[1] / "summary.json").read_text())["stages"]
    assert summary[4]["compared"] == report(whole[1], "all") and summary[4]["eval"] == {}


def test_an_export_loads_elsewhere_in_its_format_and_says_what_it_is(whole: Any) -> None:
    run = whole[1]
    folder = run / "stages/export/model"
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kept = AutoModelForCausalLM.from_pretrained(run / "stages/a/model")
    ids = tokenizer("add 1+2", return_tensors="pt")["input_ids"]
    assert model.dtype == torch.bfloat16 and kept.dtype == torch.float32
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, kept.state_dict()[name].to(torch.bfloat16)), name
    torch.testing.assert_close(model(ids).logits.float(), kept(ids).logits, atol=0.05, rtol=0.05)
    card = (folder / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["library_name"] == "transformers" and "base_model" not in header
    artifact = json.loads((run / "stages/a/artifact.json").read_text())
    score = json.loads((run / "summary.json").read_text())["stages"][2]["eval"]["heldout"]
    assert artifact["fingerprint"][:12] in card and f"{100 * score['avg']:.1f}% [" in card
    assert "| base | pretrain |" in card and "| b |" not in card, "its own ancestors alone"
    written = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert validate(Recipe, written) == load_recipe(whole[0])


KILLS = [
    Kill("event", "step_done base 3"),
    Kill("event", "evaluated all 1"),
    Kill("before", "lydite.pipeline.stages.evaluate:save_artifact"),
    Kill("before", "lydite.pipeline.stages.export:save_artifact"),
]


def test_killed_anywhere_it_ends_the_same(whole: Any, tmp_path: Path) -> None:
    file, run = whole
    out = tmp_path / "run"
    for kill in KILLS:
        run_and_die(file, out, kill)
    run_recipe(load_recipe(file), out)
    for name in ("base", "a", "b"):
        path = f"stages/{name}/{WEIGHTS}"
        assert (out / path).read_bytes() == (run / path).read_bytes()
    for name in ("early", "all"):
        path = f"stages/{name}/answers.parquet"
        assert pq.read_table(out / path).equals(pq.read_table(run / path))
        assert report(out, name) == report(run, name)
    theirs = sorted(p.name for p in (run / "stages/export/model").iterdir())
    assert sorted(p.name for p in (out / "stages/export/model").iterdir()) == theirs
    for path in (run / "stages/export/model").glob("*.safetensors"):
        other = out / "stages/export/model" / path.name
        assert other.read_bytes() == path.read_bytes()
    assert not list((out / "stages").rglob(".*"))


def small(place: Path, *stages: dict[str, Any], **tasks: Any) -> Recipe:
    values = recipe([sft_stage(name="base", steps=1), *stages], place)
    values["tasks"] |= tasks
    return validate(Recipe, values)


def test_an_export_writes_over_nothing_but_its_own(tmp_path: Path) -> None:
    target = tmp_path / "published"
    target.mkdir()
    (target / "thesis.tex").write_text("years of work")
    made = small(tmp_path, {"kind": "export", "to": str(target)})
    checks = {check.name: check for check in check_recipe(made, tmp_path / "run")}
    assert checks["export of export"].mark is Mark.FAILED
    with pytest.raises(UserError, match=r"stages\.export\.to: .* not what this stage has written"):
        run_recipe(made, tmp_path / "run")
    assert [path.name for path in target.iterdir()] == ["thesis.tex"]
    assert not (tmp_path / "run").exists(), "said before anything is trained"
    (target / "thesis.tex").unlink()
    run_recipe(made, tmp_path / "run")
    first = (target / "model.safetensors").read_bytes()
    assert first == (tmp_path / "run/stages/base" / WEIGHTS).read_bytes()
    half = small(tmp_path, {"kind": "export", "to": str(target), "dtype": "float16"})
    run_recipe(half, tmp_path / "run", redo=True)
    assert len((target / "model.safetensors").read_bytes()) < len(first)
    values = json.loads(half.model_dump_json()) | {"name": "another"}
    with pytest.raises(UserError, match="not what this stage has written"):
        run_recipe(validate(Recipe, values), tmp_path / "other")


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"models": ["base", "base"]}, "models: one is named twice"),
        ({"models": ["nowhere"]}, "no earlier stage 'nowhere' that leaves a model"),
        ({"models": ["base"], "start_from": "base"}, "keep one of them"),
        ({"evaluation": {"samples": 2}}, "evaluation: nothing to measure; name tasks there, or"),
        ({"kind": "export", "dtype": "float8"}, "dtype"),
        ({"kind": "merge_lora", "model": {"path": "x", "lora": {}}}, "model.lora: nothing is tr"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    stage: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        small(tmp_path, {"kind": "evaluate", **stage})
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_is_measured_is_not_trained_on_unless_asked_for(tmp_path: Path) -> None:
    stage = {"kind": "evaluate", "evaluation": {"tasks": ["worked"]}}
    said = r"^stages\.evaluate\.evaluation\.tasks: 'worked' is trained on by stage 'base'"
    with pytest.raises(UserError, match=said):
        run_recipe(small(tmp_path, stage), tmp_path / "run")
    row = {"question": "add 1+2", "answer": "3", "worked": "3"}
    for name in ("seen", "unseen"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    files = {
        "seen": {"path": str(tmp_path / "seen.jsonl"), "worked": "worked"},
        "unseen": {"path": str(tmp_path / "unseen.jsonl")},
    }
    leak = [
        sft_stage(task="seen", steps=1),
        {"kind": "evaluate", "evaluation": {"tasks": ["unseen"]}},
    ]
    with pytest.raises(UserError, match="1 held-out questions are also trained on"):
        run_recipe(small(tmp_path, *leak, **files), tmp_path / "run")
    allowed = {**stage, "trained_on": True}
    allowed["evaluation"] = {"tasks": ["worked"], "sampling": {"max_tokens": 6}}
    run = run_recipe(small(tmp_path, allowed), tmp_path / "run")
    assert report(run.folder, "evaluate")["scores"]["worked"]["base"]["n"] == 40


def test_pretraining_learns_text_and_refuses_a_large_model(tmp_path: Path) -> None:
    lines = [{"text": f"count {n} in {n}{n}"} for n in range(10)] + [{"text": "0" * 200}]
    (tmp_path / "text.jsonl").write_text("\n".join(map(json.dumps, lines)))
    text = {"path": str(tmp_path / "text.jsonl"), "prompt": "text", "reference": None}
    stage = pretrain(name="words", task="text", epochs=3, steps=None, batch_size=1, block=40)
    made = small(tmp_path, stage, text=text)
    run = run_recipe(made, tmp_path / "run")
    # 10 documents of 6 tokens, and one of 201 in five pieces of 40 and one of 6: 5 full blocks, and
    # 11 pieces of 6 in 2 more.
    assert run.stages[1].steps == 3 * 7
    losses = [
        e.metrics["loss"] for e in read_events(run.folder / "events.jsonl")
        if e.kind == "step_done" and e.stage == "words"
    ]  # fmt: skip
    assert sum(losses[-7:]) < 0.9 * sum(losses[:7])
    large = small(tmp_path, {**stage, "parameters_at_most": 1000}, text=text)
    with pytest.raises(UserError, match=r"^stages\.words\.parameters_at_most: the model has \d"):
        run_recipe(large, tmp_path / "large")
    assert not (tmp_path / "large/stages").exists(), "said before anything is trained"
    checks = {check.name: check for check in check_recipe(made, tmp_path / "new")}
    assert "11 in blocks of 40 tokens, 1 at once; 3 passes" in checks["documents of words"].text
    assert VOCABULARY[0] in "".join(checks["prompts of base"].lines)


def below(node: Node) -> dict[str, Any]:
    return {child.name: below(child) for child in node.children}


def test_the_lineage_shows_branches_and_every_kind_with_scores(whole: Any) -> None:
    root = read_lineage(whole[1])
    assert below(root) == {"base": {"early": {}, "a": {"export": {}}, "b": {"all": {}}}}
    tree = json.loads(json.dumps(root.as_json()))
    assert (tree["name"], tree["path"], tree["seed"]) == ("model", "init:llama", 0)
    base = tree["children"][0]
    record = json.loads((whole[1] / "stages/base/artifact.json").read_text())
    assert base["fingerprint"] == record["fingerprint"] and base["state"] == "done"
    assert base["data"] == record["data"] and base["start"] == "init:llama"
    summary = json.loads((whole[1] / "summary.json").read_text())
    assert base["scores"] == summary["stages"][0]["eval"]
    score = base["scores"]["heldout"]
    line = next(line for line in root.children[0].lines if line.startswith("heldout "))
    assert line.startswith(f"heldout {100 * score['avg']:.1f}% [{100 * score['ci95'][0]:.1f}, ")
    assert [each.get("start") for each in summary["stages"]] == [
        "init:llama", "base", "base", "base", "b", "a",
    ]  # fmt: skip
    lines = read_lineage(whole[1]).children[0].children[2].children[0].lines
    models = {line.split()[1] for line in lines if line.startswith("model ")}
    assert models == {"base", "a", "b"}


def test_the_lineage_goes_with_an_artifact_that_is_carried_elsewhere(
    whole: Any, tmp_path: Path
) -> None:
    shutil.copytree(whole[1] / "stages/a", tmp_path / "elsewhere")
    shutil.copytree(whole[1] / "stages/export/model", tmp_path / "published")
    record = json.loads((whole[1] / "stages/a/artifact.json").read_text())
    alone = read_lineage(tmp_path / "elsewhere")
    assert alone.name == "base" and record["parent"][:12] in alone.title
    (node,) = alone.children
    assert node.facts["fingerprint"] == record["fingerprint"]
    assert f"data worked {record['data']['worked'][:12]}" in node.lines
    assert read_lineage(tmp_path / "published").children[0].name == "export"
    (tmp_path / "elsewhere/artifact.json").unlink()
    with pytest.raises(UserError, match=r"no recipe\.yaml; nor is it that of an artifact"):
        read_lineage(tmp_path / "elsewhere")


def test_the_model_of_a_run_is_the_one_that_is_asked_for(tmp_path: Path) -> None:
    branches = [sft_stage(name="a", steps=1), sft_stage(name="b", steps=1, start_from="base")]
    values = json.loads(small(tmp_path, *branches).model_dump_json())
    for result, name in ((None, "b"), ("a", "a"), ("base", "base"), (None, "b")):
        made = validate(Recipe, {**values, "result": result})
        run = run_recipe(made, tmp_path / "run")
        theirs = tmp_path / "run/stages" / name / WEIGHTS
        assert (run.model / "model.safetensors").read_bytes() == theirs.read_bytes()
        artifact = json.loads((tmp_path / f"run/stages/{name}/artifact.json").read_text())
        summary = json.loads((tmp_path / "run/summary.json").read_text())
        assert summary["model"] == {"stage": name, "fingerprint": artifact["fingerprint"]}
        assert read_events(run.folder / "events.jsonl")[-1].result == name  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"result: no stage 'c' that leaves a model; one of base"):
        validate(Recipe, {**values, "result": "c"})
    node = read_lineage(tmp_path / "run").children[0]
    assert node.facts["state"] == "skipped"
    assert "skipped at the last attempt: done before" in node.lines
