"""``lydite eval``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="Folder, hub id or .gguf file; `runs/NAME/model` after a run. Or the address of "
            "an OpenAI-compatible server, such as http://localhost:8000/v1."
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            "-t",
            help="A file of problems (.jsonl, .json, .parquet), or with --recipe a task's name. "
            "\\[default: what the recipe holds out]",
        ),
    ] = None,
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
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Measure with each of these thinking budgets in tokens: 16,32,64; `none` is no "
            "budget."
        ),
    ] = None,
    budget_phrase: Annotated[
        str | None,
        typer.Option(help="Said for the model where a budget ends its thought, before </think>."),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", help="With --budgets: draw accuracy against budget into this file."),
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
    served: Annotated[
        str | None, typer.Option(help="Of a server: the model's name there. \\[default: its first]")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Of a server: folder or hub id with the model's tokenizer. Prompts are rendered "
            "here and sent by token, as `lydite serve` wants them; without it messages are sent."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Of a server: environment variable with its key.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Of a server: requests under way at once.")
    ] = 16,
) -> None:
    """Measures a model on problems with known answers: avg@k with a 95% interval, by task and tag.

    [bold]Examples[/]

    lydite eval runs/quickstart/model --recipe quickstart --tasks heldout

    lydite eval ./my-model --tasks gsm8k_test.jsonl --marker '####' --samples 4 --temperature 0.7
    --limit 200

    lydite eval runs/qwen3_tiny/model --recipe qwen3_tiny --tasks heldout --thinking both

    lydite eval runs/quickstart/model --recipe quickstart --budgets 4,8,16,none --png budgets.png

    lydite eval http://localhost:8000/v1 --served my-model -t gsm8k_test.jsonl --marker '####'
    """
    from rich.console import Console

    from lydite.cli.bars import progress_bars
    from lydite.cli.starting import importing

    with importing():
        from lydite.config import UserError
        from lydite.model.loading import ModelConfig
        from lydite.pipeline import budgets as sweep
        from lydite.pipeline.budget_picture import check_png, save
        from lydite.pipeline.evaluation import (
            describe,
            evaluate_model,
            load_measurement,
            modes_of,
            remote_model,
            write_answers,
        )
        from lydite.tasks.task import TaskConfig

    if output is not None and (output.suffix != ".parquet" or not output.parent.is_dir()):
        raise UserError(f"--output {output}: give a .parquet file in a folder that exists")
    if budgets is None and (png is not None or budget_phrase is not None):
        raise UserError("--budgets: --png and --budget-phrase go with it; add --budgets 16,32,64")
    wanted = sweep.parse_budgets(budgets) if budgets is not None else []
    if png is not None:
        check_png(png)
    files = TaskConfig.model_construct(
        prompt=prompt, reference=reference, reference_marker=marker, template=template
    )
    columns = files.model_dump(exclude_unset=True) | {"limit": limit}
    plan = load_measurement(tasks or (), recipe, columns, verifier, seed)
    plan = plan.with_sampling(samples, temperature, max_tokens)
    if thinking:
        plan = replace(plan, modes=modes_of(thinking))
    remote = model.startswith(("http://", "https://"))
    if not remote and (served or tokenizer or api_key_env):
        raise UserError("MODEL: --served, --tokenizer and --api-key-env go with a server's address")
    config = (
        remote_model(model, served, tokenizer, api_key_env, concurrency)
        if remote
        else plan.model(ModelConfig(path=model))
    )
    console = Console(highlight=False)
    if budgets is None:
        with progress_bars() as show:
            found = evaluate_model(config, plan, lambda name, at: show(name, at.finished, at.total))
        console.print(describe(found, plan))
        answered = list(found.values())
    else:
        with progress_bars() as show:
            by_budget = sweep.evaluate_budgets(
                config,
                plan,
                wanted,
                budget_phrase,
                lambda name, at: show(name, at.finished, at.total),
            )
        points = sweep.points(by_budget)
        console.print(sweep.table(points, plan.samples))
        console.print("", sweep.chart(points), sep="\n", soft_wrap=True)
        if png is not None:
            save(points, model, png)
            console.print(f"picture: {png}")
        answered = [each for found in by_budget.values() for each in found.values()]
    if output is not None:
        write_answers(output, answered)
        console.print(f"answers: {output}")
