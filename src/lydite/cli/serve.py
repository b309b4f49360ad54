"""``lydite serve``."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    model: Annotated[
        str, typer.Argument(help="Folder, hub id or .gguf file; `runs/NAME/model` after a run.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model. \\[default: MODEL]")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads for tensor work.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with a key that requests must bring.")
    ] = None,
) -> None:
    """Serves a model over HTTP, OpenAI-compatible: /v1/models and /v1/completions, with
    log-probabilities of the prompt, so that it can be the teacher of a distill stage elsewhere.

    It runs one request at a time; use vLLM where speed counts.

    [bold]Examples[/]

    lydite serve runs/quickstart/model --port 8001

    lydite serve ./my-teacher --host 0.0.0.0 --api-key-env TEACHER_KEY
    """
    import os

    from lydite.cli.starting import importing

    with importing():
        import torch

        from lydite.config import UserError
        from lydite.model.loading import ModelConfig, load_frozen
        from lydite.pipeline.device import pick_device
        from lydite.rollout.serve import ModelServer, Served

    key = None
    if api_key_env is not None:
        key = os.environ.get(api_key_env, "").strip()
        if not key:
            raise UserError(f"--api-key-env: the environment variable {api_key_env} is not set")
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {device}: give auto, cpu or cuda")
    if threads is not None:
        torch.set_num_threads(threads)
    policy = load_frozen(ModelConfig(path=model), pick_device(device))
    with ModelServer(Served(policy, name or model), host, port, key) as server:
        typer.echo(f"{name or model} on {server.url}; ctrl-C ends it")
        server.serve_forever()
