"""`lydite probe`: sampled once, read right, and of use to a run."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import small_runs
import yaml
from typer.testing import CliRunner

from lydite.cli.main import app
from lydite.config import UserError, load_yaml, validate
from lydite.pipeline.probe import picture
from lydite.pipeline.probe import probe as probing
from lydite.pipeline.probe.filtered import as_yaml, filtered_rows, overrides_of, rows_of
from lydite.pipeline.probe.findings import Findings, band, findings
from lydite.pipeline.probe.record import PIECE, Record, RecordedEngine
from lydite.pipeline.probe.report import as_json, as_markdown
from lydite.pipeline.probe.subject import Subject, find_subject
from lydite.pipeline.recipe import Recipe, load_recipe
from lydite.tasks.task import RowsConfig, TaskConfig, load_task, task_of_rows
from lydite.train.evaluate import Prompt, evaluate
from lydite.types import (
    Completion,
    FinishReason,
    Message,
    Outcome,
    Problem,
    Request,
    SamplingParams,
    Verdict,
)
from lydite.watch.probing import Tally, tally


@pytest.fixture
def small(tmp_path: Path) -> Path:
    values = small_runs.recipe([small_runs.rl_stage(name="rl")], tmp_path)
    return small_runs.write(values, tmp_path / "small.yaml")


def subject_of(path: Path, *overrides: str, most: int = 8, **named: object) -> Subject:
    given = {"stage": None, "model": None, "run": path.parent / "none", "most": most, **named}
    return find_subject(load_recipe(path, overrides), **given)  # type: ignore[arg-type]


# --- sampled once ---------------------------------------------------------------------------------


def test_what_was_sampled_before_an_interrupt_is_not_sampled_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(small)
    whole = probing.probe(subject, tmp_path / "whole", 6, lambda *_: None)

    def stop(done: int, total: int) -> None:
        if done == 17:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        probing.probe(subject, out, 6, stop)
    kept = (out / "completions.jsonl").read_text().splitlines()
    assert len(kept) == 17
    told: list[tuple[int, int]] = []
    again = probing.probe(subject, out, 6, lambda *at: told.append(at))
    assert told[0] == (17, 48) and told[-1] == (48, 48)
    assert (out / "completions.jsonl").read_text().splitlines()[:17] == kept
    assert again.values == {**whole.values, "overrides": again.values["overrides"]}


def test_more_samples_and_problems_add_to_what_is_there(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    probing.probe(subject_of(small, most=5), out, 4, lambda *_: None)
    told: list[tuple[int, int]] = []
    probing.probe(subject_of(small, most=8), out, 6, lambda *at: told.append(at))
    assert told[0] == (20, 48)


class Numbered:
    """Completions that say which they are; ``calls`` are the requests."""

    version = 3

    def __init__(self, finish: FinishReason = "length") -> None:
        self.finish: FinishReason = finish
        self.calls: list[tuple[str, int, int]] = []

    def generate(self, requests: list[Request]) -> list[list[Completion]]:
        self.calls += [(r.problem_id, r.first_sample, r.samples) for r in requests]
        return [
            [self._one(r, r.first_sample + number) for number in range(r.samples)] for r in requests
        ]

    def _one(self, request: Request, sample: int) -> Completion:
        text = f"{request.problem_id}\u2028 \ud800/{sample}"
        return Completion(
            request.problem_id, sample, (1,), (4, 5), (-1.0, 0.0), (1, 0), self.finish, text
        )


def test_a_record_with_holes_and_half_a_line_is_filled(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "completions.jsonl"
    request = Request("a", (1,), 6, SamplingParams(4))
    with Record(path) as record:
        RecordedEngine(Numbered(), record, lambda *_: None).generate([request])
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join([lines[0], lines[2], lines[4], lines[5][:30]]), encoding="utf-8")
    engine = Numbered()
    heard: list[int] = []
    with Record(path) as record:
        recorded = RecordedEngine(engine, record, lambda *_: None)
        (found,) = recorded.stream([request], lambda _, completion: heard.append(completion.sample))
    assert engine.calls == [("a", 1, 1), ("a", 3, 1), ("a", 5, 1)]
    assert [c.sample for c in found] == sorted(heard) == list(range(6))
    assert {(c.finish, c.sampled, c.token_ids) for c in found} == {("length", 1, (4, 5))}
    engine = Numbered()
    with Record(path) as record:
        many = [replace(request, problem_id=str(n), samples=2) for n in range(PIECE + 3)]
        groups = RecordedEngine(engine, record, lambda *_: None).generate([request, *many])
    assert [len(group) for group in groups] == [6] + [2] * (PIECE + 3)
    assert len(engine.calls) == PIECE + 3


# --- read right -----------------------------------------------------------------------------------


class Known:
    """A policy with a pass rate for each problem: a verifier that draws."""

    def __init__(self, rates: dict[str, float]) -> None:
        self._rates, self._draw = rates, random.Random(0)

    def verify(self, problems: list[Problem], texts: list[str]) -> list[Verdict]:
        right = [self._draw.random() < self._rates[p.id] for p in problems]
        return [Verdict(Outcome.CORRECT if each else Outcome.WRONG, float(each)) for each in right]

    def close(self) -> None: ...


def known(small: Path, rates: list[float], samples: int = 16) -> tuple[Subject, Findings]:
    subject = subject_of(small)
    problems = tuple(
        Problem(f"p{n}", f"q {n}", (Message("user", f"q {n}"),), "1") for n in range(len(rates))
    )
    data = replace(subject.data, problems=problems)
    subject = replace(subject, data=data, problems=problems)
    verifier = Known({p.id: rate for p, rate in zip(problems, rates, strict=True)})
    params = subject.stage.sampling.params()
    prompts = [Prompt(p, (1,)) for p in problems]
    found = evaluate("train", prompts, Numbered("stop"), verifier, params, samples)
    return subject, findings(subject, None, found)  # type: ignore[arg-type]


def test_it_recommends_what_brute_force_would(small: Path) -> None:
    """Half of the problems hopeless, a tenth solved, the others hard."""
    rates = [0.0] * 150 + [1.0] * 30 + [0.1] * 120
    subject, found = known(small, rates)

    def share(size: int) -> float:
        return fmean(1 - p**size - (1 - p) ** size for p in rates)

    best = max((4, 8, 16), key=lambda size: share(size) / math.sqrt(size))
    assert found.choice is not None and found.choice.size == best == 16
    for each in found.sizes:
        assert each.informative.lo < share(each.size) < each.informative.hi
    assert found.shares.always.mean == pytest.approx(0.1)
    # Those kept were right now and then; what they are expected to give, they give.
    assert found.band is not None
    kept = [rates[int(name[1:])] for name in found.band.kept]
    assert set(kept) == {0.1} and len(kept) > 0.75 * 120
    assert found.band.after == pytest.approx(1 - 0.9**16 - 0.1**16, abs=0.1)
    assert found.band.before == pytest.approx(share(16), abs=0.05)
    changed = overrides_of(subject, found, Path("f.jsonl"))
    assert changed["stages.0.group_size"] == 16
    assert changed["stages.0.prompts_per_step"] == 1, "3 × 4 completions a step, as before"
    assert changed["stages.0.task"] == "train_probed"
    assert len(filtered_rows(subject, found)) == len(kept)


def test_problems_that_all_teach_stay(small: Path) -> None:
    subject, found = known(small, [0.5] * 60)
    assert found.band is not None and len(found.band.kept) >= 59
    assert "RL can sharpen" in found.skill
    text = as_markdown(subject, found, {}, "", "")
    assert "Nothing that the recipe does not have already" in text


def test_nothing_to_teach_is_said_and_recommends_no_group(small: Path) -> None:
    subject, found = known(small, [0.0] * 20)
    assert found.choice is None and found.band is None
    changed = overrides_of(subject, found, Path("f"))
    assert "stages.0.group_size" not in changed and "stages.0.task" not in changed
    assert "nothing here can teach" in as_markdown(subject, found, changed, "", "")
    assert json.loads(json.dumps(as_json(subject, found, changed)))["band"] is None


def test_the_undecided_count_for_nothing_and_are_said(small: Path) -> None:
    class Torn(Known):
        def verify(self, problems: list[Problem], texts: list[str]) -> list[Verdict]:
            found = super().verify(problems, texts)
            lost = Verdict(Outcome.CRASHED, None, detail="no sandbox")
            return [lost if n % 4 == 0 else each for n, each in enumerate(found)]

    subject = subject_of(small)
    prompts = [Prompt(p, (1,)) for p in subject.problems]
    verifier = Torn(dict.fromkeys((p.id for p in subject.problems), 0.5))
    found = evaluate(
        "train", prompts, Numbered("stop"), verifier, subject.stage.sampling.params(), 8
    )
    said = findings(subject, None, found)  # type: ignore[arg-type]
    assert {t.decided for t in said.tallies} == {6}
    assert "16 of 64 answers could not be judged" in said.notes[0]
    assert "no sandbox" in said.notes[0] and "a run stops past 10%" in said.notes[0]


def test_graded_rewards_that_differ_can_teach_though_all_are_wrong() -> None:
    graded = tally("g", [False] * 8, [0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4])
    flat = [Tally(f"f{n}", 0, 8, (8,)) for n in range(9)]
    assert graded is not None
    found = band([graded, *flat], 4)
    assert found is not None and found.kept == ("g",)


def test_a_picture_is_drawn(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for rates in ([0.0] * 5, [0.1, 0.5, 1.0, 0.3]):
        _, found = known(small, rates)
        picture.save(found, "a $title", 6, tmp_path / "x.png")
        assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"


ODD = '''
def odd(completions, answer, **columns):
    """Problems with an even answer are out of reach; of others half of all texts are right,
    whatever an untrained model writes."""
    return [float(sum(map(ord, t)) % 2 and int(a) % 2) for t, a in zip(completions, answer)]
'''

# --- of use to a run ------------------------------------------------------------------------------


def test_the_command_and_the_run_that_takes_its_overrides(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.py").write_text(ODD)
    odd = [f"verifier.function={tmp_path}/odd.py:odd", "tasks.train.generated.count=40"]
    ask = ["probe", str(small), *odd, "-n", "40", "-k", "8"]
    said = CliRunner().invoke(app, [*ask, "--json"])
    assert said.exit_code == 0, said.output
    out = Path("probes/small-rl")
    found = json.loads(said.stdout)
    assert found == json.loads((out / "probe.json").read_text())
    assert found["answers"] == 320 and len(found["pass_rates"]) == 40
    kept = [row["problem"] for row in found["pass_rates"] if row["kept"]]
    assert found["overrides"]["stages.0.task"] == "train_probed"
    assert 12 <= len(kept) < 40
    plain = load_recipe(small, odd)
    recipe = load_recipe(small, [f"@{out / 'overrides.yaml'}", "stages.0.steps=1"])
    assert recipe.stages[0].group_size == found["group_size"]["size"]  # type: ignore[union-attr]
    before = {p.id: p for p in load_task("train", plain.tasks["train"], 0).problems}
    after = load_task("train_probed", recipe.tasks["train_probed"], 0).problems
    assert [p.id for p in after] == kept
    for p in after:
        assert replace(p, fields={}) == before[p.id]
        assert 0 <= p.fields["pass_rate"] <= 1  # type: ignore[operator]
    text = CliRunner().invoke(app, ask)
    assert text.exit_code == 0 and "Group size" in text.stdout and "overrides:" in text.stdout
    ran = CliRunner().invoke(
        app,
        ["run", str(small), f"@{out / 'overrides.yaml'}", "stages.0.steps=1",
         "stages.0.curriculum.pass_rate=pass_rate", "--out", "runs/it"],
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output


def test_rows_read_as_the_problems_they_were() -> None:
    rows = [
        {"q": "1+1?", "a": "so #### 2", "kind": "x", "id": 7, "key": "k1"},
        {"q": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"},
               {"role": "user", "content": "2+2?"}], "a": "#### 4", "kind": "y", "id": 8,
         "key": "k2"},
    ]  # fmt: skip
    columns = {
        "prompt": "q", "reference": "a", "reference_marker": "####", "tag": "kind", "id": "key",
        "template": "Q: {question} {x}", "system": "Be brief.", "thinking": False,
    }  # fmt: skip
    before = task_of_rows("t", rows, columns).problems
    tallies = {p.id: Tally(p.id, 1, 4, (1, 3)) for p in before}
    written, settings = rows_of(before, tallies, validate(RowsConfig, columns))
    again = task_of_rows("u", [json.loads(json.dumps(row)) for row in written], settings).problems
    for one, two in zip(before, again, strict=True):
        assert replace(one, fields={}) == replace(two, fields={})
        assert one.fields.items() <= two.fields.items(), "reward functions get their columns"
    assert settings["id"] == "probe_id" and again[0].fields["id"] == 7


def test_of_a_mix_the_rows_hold_what_is_shown() -> None:
    problem = Problem(
        "a/1", "1+1?", (Message("system", "s"), Message("user", "Q: 1+1?")), "2", thinking=True
    )
    mix = validate(TaskConfig, {"mix": {"a": 1}})
    rows, settings = rows_of([problem], {"a/1": Tally("a/1", 1, 2, (1, 1))}, mix)
    (again,) = task_of_rows("u", rows, settings).problems
    assert (again.id, again.messages, again.thinking, again.reference) == (
        "a/1", problem.messages, True, "2"
    )  # fmt: skip


def test_overrides_of_a_file_stand_where_it_is_named(tmp_path: Path) -> None:
    base = tmp_path / "r.yaml"
    base.write_text("a: {b: 1}\nc: [1, 2]\n")
    given = tmp_path / "o.yaml"
    given.write_text(as_yaml({"a.b": 2, "c.1": "ü: x", "d": {"e": [1, None]}}, "why"))
    assert load_yaml(base, [f"@{given}"]) == {"a": {"b": 2}, "c": [1, "ü: x"],
                                              "d": {"e": [1, None]}}  # fmt: skip
    assert load_yaml(base, [f"@{given}", "a.b=3"])["a"] == {"b": 3}
    assert load_yaml(base, ["a.b=3", f"@{given}"])["a"] == {"b": 2}
    given.write_text(as_yaml({}, "nothing"))
    assert load_yaml(base, [f"@{given}"])["a"] == {"b": 1}
    given.write_text("- a\n")
    for wrong, says in ((f"@{given}", "expected `dotted.key: value`"), ("@gone", "no file gone")):
        with pytest.raises(UserError, match=says):
            load_yaml(base, [wrong])


# --- one line for each mistake --------------------------------------------------------------------


def test_mistakes_are_one_line(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two = small_runs.recipe(
        [small_runs.sft_stage(name="sft"), small_runs.rl_stage(name="rl")], tmp_path
    )
    path = small_runs.write(two, tmp_path / "two.yaml")
    only_sft = small_runs.recipe([small_runs.sft_stage(name="sft")], tmp_path)
    sft = small_runs.write(only_sft, tmp_path / "sft.yaml")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    for words, says in (
        ([small, "--stage", "sft"], "--stage: no rl stage 'sft'; there is rl"),
        ([sft], "stages: small has no rl stage"),
        ([path], "--run runs/small: stage sft is not done there"),
        ([small, "--out", "full"], "--out full: there is something else"),
        ([small, "--run", "a", "--model", "b"], "--run: --model names the model already"),
        ([path, "--model", "gone"], "gone"),
        ([small, "stages.0.task=x"], "stages.0.task: no task 'x'"),
        ([small, "stages.0.sampling.max_tokens=500"], "max_tokens: the longest prompt"),
    ):
        found = CliRunner().invoke(app, ["probe", *map(str, words), "-n", "2", "-k", "2"])
        assert found.exit_code == 2, (words, found.output)
        lines = found.stderr.strip().splitlines()
        assert len(lines) == 1 and says in lines[0], (words, found.stderr)
    CliRunner().invoke(app, ["probe", str(small), "-n", "2", "-k", "2"])
    other = ["probe", str(small), "stages.0.sampling.temperature=0.5", "-n", "2", "-k", "2"]
    found = CliRunner().invoke(app, other)
    assert found.exit_code == 2 and "a probe of something else (then, now: sampling.temp" in (
        found.stderr
    )


def test_the_model_of_an_earlier_stage_is_taken_from_its_run(tmp_path: Path) -> None:
    stages = [small_runs.sft_stage(name="sft"), small_runs.rl_stage(name="rl")]
    path = small_runs.write(small_runs.recipe(stages, tmp_path), tmp_path / "two.yaml")
    from lydite.pipeline.runner import run_recipe

    run = tmp_path / "run"
    run_recipe(load_recipe(path), run)
    subject = subject_of(path, run=run)
    assert subject.model.path == str(run / "stages" / "sft" / "model")
    assert subject_of(path, "stages.1.group_size=8", run=run).model == subject.model
    with pytest.raises(UserError, match="stage sft was made from other settings"):
        subject_of(path, "stages.0.steps=9", run=run)
    rate = json.loads((run / "stages" / "sft" / "artifact.json").read_text())["fingerprint"]
    assert subject.basis["model"]["from"] == rate


def test_a_smaller_draw_is_part_of_a_larger_one(small: Path) -> None:
    few, many = (subject_of(small, most=n).problems for n in (4, 9))
    assert {p.id for p in few} < {p.id for p in many}
    assert isinstance(load_recipe(small), Recipe)
    assert yaml.safe_load(small.read_text())["name"] == "small"
