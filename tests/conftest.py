"""Every test runs offline, on one thread, from the same seeds, and away from the user's folders."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before torch, transformers and datasets are imported: they read these once.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HOME=str(Path(tempfile.gettempdir()) / f"lydite-tests-{os.getuid()}" / "huggingface"),
    COLUMNS="100",
)
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)

import hypothesis  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile(
    "lydite", deadline=None, derandomize=True, database=None, max_examples=50
)
hypothesis.settings.load_profile("lydite")


@pytest.fixture(autouse=True)
def seeds() -> Iterator[None]:
    """The same numbers in whatever order tests run; torch is seeded only where a test has imported
    it.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(0)
        torch.set_num_threads(1)
    yield
