"""One small cluster for all tests of it, ended with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CPUS = 4
STORE = 100_000_000


@pytest.fixture(scope="session")
def ray_here() -> Iterator[Any]:
    """A cluster of one machine with logical CPUs and a small object store, to which this process is
    connected: what opens a session finds it and leaves it there. Tests may add machines.
    """
    pytest.importorskip("ray")
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"})
    # A machine that is gone is noticed in seconds.
    os.environ.update({"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "2000"})
    source = str(Path(__file__).resolve().parents[2] / "src")
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (source, before)))
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=CPUS, object_store_memory=STORE, include_dashboard=False)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ["PYTHONPATH"] = before
