"""``lydite probe``: what a model's answers say before it is trained."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def probe(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, as in `lydite run`."),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="An rl stage. \\[default: the first one]")
    ] = None,
    problems: Annotated[
        int, typer.Option("--problems", "-n", min=2, help="Problems, drawn by the seed.")
    ] = 200,
    samples: Annotated[
        int, typer.Option("--samples", "-k", min=2, help="Answers to each problem.")
    ] = 16,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run whose earlier stages made the model. \\[default: runs/NAME]"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Probe this folder or hub id instead of the stage's starting model."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder. \\[default: probes/NAME-STAGE]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Asks the model that a stage starts from, before anything is trained: which problems can teach
    it, how large a group and how long an answer should be.

    Pass rates with intervals, pass@k, informative groups by size, and lengths; recommended settings
    as overrides, and the problems worth sampling as a file. Given again after a stop, or with more
    --samples or --problems, it goes on: nothing is sampled twice.

    [bold]Examples[/]

    lydite probe quickstart

    lydite probe recipes/gsm8k.yaml --problems 500 --samples 32

    lydite run recipes/gsm8k.yaml @probes/gsm8k-rl/overrides.yaml
    """
    import json

    from rich.console import Console
    from rich.markdown import Markdown

    from lydite.cli.bars import progress_bars
    from lydite.cli.starting import importing

    with importing():
        from lydite.config import UserError
        from lydite.pipeline.catalogue import find_recipe
        from lydite.pipeline.probe import picture
        from lydite.pipeline.probe.probe import probe as probe_stage
        from lydite.pipeline.probe.subject import find_subject
        from lydite.pipeline.recipe import load_recipe

    loaded = load_recipe(find_recipe(recipe), overrides or [])
    if run is not None and model is not None:
        raise UserError("--run: --model names the model already; give one of them")
    subject = find_subject(loaded, stage, model, run, problems)
    folder = out or Path("probes") / f"{loaded.name}-{subject.stage.name}"
    command = ["lydite", "run", recipe, *(overrides or [])]
    with progress_bars() as tell:
        found = probe_stage(subject, folder, samples, partial(tell, "answers"), command)
    if as_json:
        typer.echo(json.dumps(found.values, indent=2))
        return
    console = Console(highlight=False, emoji=False)
    shown = [line for line in found.text.splitlines() if not line.startswith("![")]
    console.print(Markdown("\n".join(shown)))
    console.print()
    for name, path in found.files.items():
        console.print(f"{name}: {path}", soft_wrap=True, markup=False)
    if not picture.can_draw():
        console.print("no picture: it needs matplotlib; pip install 'lydite[plot]'", markup=False)
