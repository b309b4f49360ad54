"""vLLM in the processes of a cluster: on a rollout worker, and beside a learner rank."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vllm is not installed; make test-vllm")
ray = pytest.importorskip("ray")

from small_runs import recipe, rl_stage  # noqa: E402
from small_vllm import ENGINE, MODEL, SEED  # noqa: E402

from lydite.config import validate  # noqa: E402
from lydite.pipeline.recipe import Recipe  # noqa: E402
from lydite.pipeline.runner import run_recipe  # noqa: E402
from lydite.rollout.colocated import release  # noqa: E402
from lydite.watch.events import StepDone, read_events  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    release()
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"})
    before = os.environ.get("PYTHONPATH", "")
    source = str(Path(__file__).resolve().parents[2] / "src")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, before)))
    try:
        ray.init(
            "local",
            num_cpus=4,
            object_store_memory=100_000_000,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield
    finally:
        ray.shutdown()
        os.environ["PYTHONPATH"] = before


@pytest.mark.parametrize("mode", ["separate", "colocated"])
def test_it_samples_with_what_the_ranks_have_learnt(tmp_path, mode):
    cluster = {"mode": mode, "rollout": {"workers": 1}, "learner": {"ranks": 1}}
    values = recipe(
        [rl_stage(objective="grpo+tis", optimizer={"lr": 0.05})],
        tmp_path, model=MODEL, engine=ENGINE, seed=SEED, cluster=cluster,
    )  # fmt: skip
    folder = run_recipe(validate(Recipe, values), tmp_path / "run").folder
    steps = [e.metrics for e in read_events(folder / "events.jsonl") if isinstance(e, StepDone)]
    trained = [m for m in steps if "kl_behaviour" in m]
    assert len(steps) == 4 and len(trained) > 1
    # At this learning rate, weights of one update ago would be far from those that learn.
    assert all(m["kl_behaviour"] < 1e-5 and m["mismatch_ess"] > 0.999 for m in trained)


def test_in_mode_async_it_takes_new_weights_amid_completions(tmp_path):
    cluster = {"mode": "async", "rollout": {"workers": 1}, "learner": {"ranks": 1}}
    values = recipe(
        [rl_stage(objective="grpo+tis", staleness=1, steps=6)],
        tmp_path, model=MODEL, engine=ENGINE, seed=SEED, cluster=cluster,
    )  # fmt: skip
    folder = run_recipe(validate(Recipe, values), tmp_path / "run").folder
    steps = [e.metrics for e in read_events(folder / "events.jsonl") if isinstance(e, StepDone)]
    assert len(steps) == 6
    assert all(m["staleness_max"] <= 1 for m in steps if "staleness_max" in m)
