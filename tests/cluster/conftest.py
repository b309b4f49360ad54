"""One small Ray for all tests of the cluster, ended with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

CPUS = 8


@pytest.fixture(scope="session")
def ray_here() -> Iterator[None]:
    """Ray in this process, with logical CPUs and a small object store. What opens a session finds
    it and leaves it there.
    """
    ray = pytest.importorskip("ray")
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"})
    source = str(Path(__file__).resolve().parents[2] / "src")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, before)))
    try:
        ray.init(
            num_cpus=CPUS,
            object_store_memory=100_000_000,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield
    finally:
        ray.shutdown()
        os.environ["PYTHONPATH"] = before
