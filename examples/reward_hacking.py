"""What a careless reward teaches: the quickstart's model, paid when the gold stands in its text.

The reward that people write first looks for the gold answer anywhere in what the model wrote. Here
it is audited, and then the quickstart's model, after its cold start, is trained on it to count
letters in words: once paid by this reward, once by the exact verifier, from the same weights, with
the same settings, on the same problems. Held-out problems, answered greedily and checked exactly,
say what each has really learnt.

    python examples/reward_hacking.py                    # about 4 minutes on one core
    python examples/reward_hacking.py --seeds 11 12 13

Needs matplotlib (extra ``plot``) and writes ``reward_hacking.png`` beside the runs. Given again, it
goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import lydite
from lydite.tasks.generated import generate
from lydite.watch.events import Evaluated, StepDone, read_events
from lydite.watch.samples import Sample, read_samples, samples_path

# The rest is imported where it is used: an audit's workers import this file for `contains_gold`
# alone, and wait for no torch.
if TYPE_CHECKING:
    from lydite.pipeline.audit.report import Report

EXACT = {"kind": "exact", "answer": "tag", "thinking": "required"}
# The tally of a count passes through the gold, so the careless reward pays for more than right
# answers. The steps of an addition do not show its gold: there the hole is harder to find.
KINDS = ("count",)
SAID_EVERY = 10
COLOURS = {"reward": "#0072B2", "accuracy": "#D55E00"}  # Okabe and Ito's.
TITLES = {"contains_gold": "Gold anywhere in the text", "exact": "Exact answer"}


def contains_gold(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """1 where the gold answer stands anywhere in the text."""
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


REWARDS: Mapping[str, Any] = {"contains_gold": contains_gold, "exact": EXACT}


class Curve(NamedTuple):
    """One run: the mean reward and length (tokens) of every step's completions, the held-out
    accuracy by step, and which share of the last held-out answers holds the gold and is wrong.
    """

    reward: list[float]
    length: list[float]
    accuracy: dict[int, float]
    fooled: float

    @property
    def best(self) -> int:
        """The step of the highest held-out accuracy, the first of equals."""
        return max(self.accuracy, key=lambda step: self.accuracy[step])


def cold_start(out: Path, overrides: Sequence[str]) -> Path:
    """The quickstart's stages before RL; returns the model that they leave."""
    from lydite.pipeline.catalogue import find_recipe
    from lydite.pipeline.heldout import EvalConfig
    from lydite.pipeline.recipe import load_recipe
    from lydite.pipeline.runner import run_recipe

    recipe = load_recipe(find_recipe("quickstart"), overrides)
    first = {"stages": recipe.stages[:-1], "evaluation": EvalConfig()}
    return run_recipe(recipe.model_copy(update=first), out).model


def train(reward: Any, start: Path, out: Path, given: argparse.Namespace, seed: int) -> Curve:
    """The quickstart's RL stage on counting, with this reward; accuracy is exact in any case."""
    from lydite.pipeline.catalogue import find_recipe
    from lydite.pipeline.recipe import load_recipe

    quickstart = load_recipe(find_recipe("quickstart"))
    stage = quickstart.stages[-1].model_dump(exclude={"name", "kind", "task", "start_from"})
    sampling = quickstart.evaluation.sampling.model_dump()
    problems = {"kinds": list(given.kinds), "count": 3600}
    heldout = {"kinds": list(given.kinds), "count": given.heldout, "split": "heldout", "seed": 0}
    lydite.Trainer(
        model=str(start),
        problems={"generated": problems},
        heldout={"generated": heldout},
        reward=reward,
        objective=stage.pop("objective"),
        settings={**stage, "steps": given.steps, "prompts_per_step": given.prompts},
        recipe={
            "name": "reward_hacking",
            "seed": seed,
            "threads": 1,
            "evaluation": {"every": SAID_EVERY, "verifier": EXACT, "sampling": sampling},
        },
        out=out,
    ).run()
    return read_curve(out)


def read_curve(out: Path) -> Curve:
    """A run's figures, from its event log and its samples."""
    events = read_events(out / "events.jsonl")
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    accuracy = {event.step: event.avg for event in events if isinstance(event, Evaluated)}
    last = answers(out, max(accuracy))
    return Curve(
        [metrics["reward"] for metrics in steps],
        [metrics["length"] for metrics in steps],
        accuracy,
        fmean(holds_gold(answer) and not answer.reward for answer in last),
    )


def answers(out: Path, step: int) -> list[Sample]:
    """The held-out answers of a run after so many steps."""
    return read_samples(samples_path(out / "samples", "rl-heldout", step))


def holds_gold(answer: Sample) -> bool:
    """Whether the careless reward would pay for it."""
    return contains_gold([], [answer.completion], [answer.reference or ""]) == [1.0]


def audit(target: str, tasks: Path | str, limit: int) -> Report:
    """Attacks a reward with these problems, prints its grade and what it pays for wrongly."""
    from lydite.pipeline.audit.plan import audit_reward
    from lydite.pipeline.audit.report import shown
    from lydite.pipeline.audit.subject import Request

    report = audit_reward(Request(target, tasks=(str(tasks),), limit=limit))
    rate, name = report.false_accept, report.subject.name.rpartition("/")[2]
    print(f"audit of {name}: grade {report.grade}; of {rate.total} wrong answers "
          f"{rate.wrong} are paid ({rate.share:.0%})")  # fmt: skip
    for worst in report.worst[:6]:
        case = worst.finding.case
        print(f"  {worst.wrong:3} of {worst.total:3}  {worst.attack}; gold {case.problem.reference}"
              f": {shown(case.text, 60)}")  # fmt: skip
    print(flush=True)
    return report


def table(curves: Mapping[str, Mapping[int, Curve]]) -> str:
    """Reward in training and length (means of the first and the last ten steps), held-out accuracy,
    and the share of the last held-out answers that hold the gold and are wrong; by seed.
    """
    lines = [
        "| paid for | seed | training reward | tokens | accuracy before | best | after | fooled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, seeds in curves.items():
        for seed, (reward, length, accuracy, fooled) in seeds.items():
            best = seeds[seed].best
            lines.append(
                f"| {TITLES[name].lower()} | {seed} "
                f"| {fmean(reward[:10]):.2f} → {fmean(reward[-10:]):.2f} "
                f"| {fmean(length[:10]):.0f} → {fmean(length[-10:]):.0f} "
                f"| {accuracy[0]:.1%} | {accuracy[best]:.1%} (step {best}) "
                f"| {accuracy[max(accuracy)]:.1%} | {fooled:.1%} |"
            )
    return "\n".join(lines)


def show_answers(out: Path, curve: Curve, count: int = 2) -> str:
    """The same held-out problems before training, at the best evaluation and at the end: first
    those that were right at the best one and are no more.
    """
    steps = sorted({0, curve.best, max(curve.accuracy)})
    by_step = {step: answers(out, step) for step in steps}
    best, last = by_step[curve.best], by_step[steps[-1]]
    lost = [bool(b.reward) and not end.reward for b, end in zip(best, last, strict=True)]
    lines = []
    for index in sorted(range(len(lost)), key=lambda n: not lost[n])[:count]:
        problem = last[index]
        lines.append(f"{problem.prompt.removeprefix('user: ')}   (gold {problem.reference})")
        for step, samples in by_step.items():
            answer = samples[index]
            right = "right" if answer.reward else "wrong"
            held = "gold in it" if holds_gold(answer) else "no gold"
            lines.append(f"  step {step:3}  {right}, {held:10}  {answer.completion}")
    return "\n".join(lines)


def plot(curves: Mapping[str, Mapping[int, Curve]], path: Path) -> None:
    """Reward in training and held-out accuracy under each reward, a thin line a seed."""
    import matplotlib

    matplotlib.use("Agg")  # No screen needed.
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(curves), figsize=(8, 3.1), sharey=True, squeeze=False)
    for axes, (name, seeds) in zip(panels[0], curves.items(), strict=True):
        for index, curve in enumerate(seeds.values()):
            kept = {"linewidth": 1.4, "alpha": 0.9}
            reward = smoothed(curve.reward)
            axes.plot(
                range(1, len(reward) + 1), reward, color=COLOURS["reward"], **kept,
                label="training reward (sampled)" if index == 0 else None,
            )  # fmt: skip
            axes.plot(
                list(curve.accuracy), list(curve.accuracy.values()), "--o", markersize=3,
                color=COLOURS["accuracy"], **kept,
                label="held-out exact accuracy (greedy)" if index == 0 else None,
            )  # fmt: skip
        axes.set_title(f"Paid for: {TITLES[name].lower()}", fontsize=10)
        axes.set_xlabel("training step (optimizer updates)")
        axes.set_ylim(-0.03, 1.03)
        axes.grid(color="#e5e5e5")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("share (0 to 1)")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=2,
                  frameon=False, fontsize=9)  # fmt: skip
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """Means over a centred window, cut at the ends."""
    half = width // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [fmean(v for v in window if not math.isnan(v)) for window in windows]


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains on a careless reward and on an exact one.")
    parser.add_argument("--out", type=Path, default=Path("runs/reward_hacking"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[11])
    parser.add_argument("--kinds", nargs="+", choices=("add", "sum", "count"), default=KINDS)
    parser.add_argument("--steps", type=int, default=150, help="RL steps of each run")
    parser.add_argument("--prompts", type=int, default=24, help="prompts (groups) per step")
    parser.add_argument("--heldout", type=int, default=150, help="held-out problems")
    parser.add_argument("--audited", type=int, default=20, help="problems the audit attacks with")
    parser.add_argument(
        "--start",
        help="a cold-started model of the quickstart, {seed} for the seed: "
        "runs/quickstart/stages/cold_start/model; trained first if not given",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, dict[int, Curve]]:
    """Audits both rewards, trains on both, prints what came of it and plots it."""
    given = options(argv)
    if find_spec("matplotlib") is None:
        raise SystemExit("plot: needs matplotlib; pip install 'lydite[plot]'")
    given.out.mkdir(parents=True, exist_ok=True)
    problems = given.out / "problems.jsonl"
    write_problems(problems, given.kinds, given.audited)
    audit(f"{Path(__file__).resolve()}:contains_gold", problems, given.audited)
    audit("recipes/quickstart.yaml", problems, given.audited)

    curves: dict[str, dict[int, Curve]] = {name: {} for name in REWARDS}
    for seed in given.seeds:
        home = given.out / str(seed)
        begun = given.start.format(seed=seed) if given.start else None
        start = Path(begun) if begun else cold_start(home / "start", [f"seed={seed}"])
        for name, reward in REWARDS.items():
            curves[name][seed] = train(reward, start, home / name, given, seed)
            print(f"{TITLES[name]}, seed {seed}: held-out problems")
            print(show_answers(home / name, curves[name][seed]) + "\n", flush=True)
    print(f"On {given.heldout} held-out problems:\n{table(curves)}")
    plot(curves, given.out / "reward_hacking.png")
    print(f"\nplot: {given.out / 'reward_hacking.png'}")
    return curves


def write_problems(path: Path, kinds: Sequence[str], count: int) -> None:
    """Problems as a file, for the audit."""
    rows = [
        {"question": problem.question, "answer": problem.reference}
        for problem in generate(kinds, count, 0, "train")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
