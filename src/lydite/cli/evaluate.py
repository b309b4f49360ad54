"""``lydite eval``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[
        str, typer.Argument(help="Folder, hub id or .gguf file; `runs/NAME/model` after a run.")
    ],
    tasks: Annotated[
        list[str],
        typer.Option(
            "--tasks",
            "-t",
            help="A file of problems (.jsonl, .json, .parquet), or with --recipe a task's name.",
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="Take tasks, verifier and sampling from this recipe."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-k", min=1, help="Completions per problem.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="0 takes the likeliest token. \\[default: the recipe's; else 0, or 1 with several "
            "samples]",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens in a completion.")
    ] = None,
    prompt: Annotated[
        str, typer.Option(help="Column with the question, or a template of columns.")
    ] = "question",
    reference: Annotated[str, typer.Option(help="Column with the gold answer.")] = "answer",
    marker: Annotated[
        str | None,
        typer.Option(help="The gold answer is what follows the last one of these, such as ####."),
    ] = None,
    template: Annotated[
        str, typer.Option(help="What the user turn says; {question} is the question.")
    ] = "{question}",
    verifier: Annotated[
        str | None, typer.Option(help="math, exact, format … \\[default: math]")
    ] = None,
    thinking: Annotated[
        list[str] | None,
        typer.Option(
            help="How it is asked to think or not, and whether it obeys: both (the hard switch on "
            "and off), all, or modes by name, such as no_think. \\[default: the recipe's]",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use at most this many problems of each file.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write every answer with its verdict here (.parquet)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Addresses the sampling noise.")] = 0,
) -> None:
    """Measures a model on problems with known answers: avg@k with a 95% interval, by task and tag.

    [bold]Examples[/]

    lydite eval runs/quickstart/model --recipe quickstart --tasks heldout

    lydite eval ./my-model --tasks gsm8k_test.jsonl --marker '####' --samples 4 --temperature 0.7
    --limit 200

    lydite eval runs/qwen3_tiny/model --recipe qwen3_tiny --tasks heldout --thinking both
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from lydite.config import UserError
    from lydite.model.loading import ModelConfig
    from lydite.pipeline.evaluation import (
        describe,
        evaluate_model,
        load_measurement,
        modes_of,
        write_answers,
    )
    from lydite.tasks.task import TaskConfig

    if output is not None and (output.suffix != ".parquet" or not output.parent.is_dir()):
        raise UserError(f"--output {output}: give a .parquet file in a folder that exists")
    files = TaskConfig.model_construct(
        prompt=prompt, reference=reference, reference_marker=marker, template=template
    )
    columns = files.model_dump(exclude_unset=True) | {"limit": limit}
    plan = load_measurement(tasks, recipe, columns, verifier, seed)
    plan = plan.with_sampling(samples, temperature, max_tokens)
    if thinking:
        plan = replace(plan, modes=modes_of(thinking))
    console, progress = Console(highlight=False), Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=progress,
        transient=True,
        disable=not progress.is_terminal,
    )
    with bars:
        ids = {name: bars.add_task(name, total=None) for name in plan.tasks}
        found = evaluate_model(
            plan.model(ModelConfig(path=model)),
            plan,
            lambda name, at: bars.update(ids[name], completed=at.finished, total=at.total),
        )
    console.print(describe(found, plan))
    if output is not None:
        write_answers(output, found)
        console.print(f"answers: {output}")
