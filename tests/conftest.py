"""Shared settings of the tests: JAX in float64, the real data where it lies beside the project."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is not a failure: seconds are measured in benchmarks/, not here.
settings.register_profile("rcp-bayes", deadline=None)
settings.load_profile("rcp-bayes")

os.environ.setdefault("JAX_ENABLE_X64", "1")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real judgments; tests that need it skip with a reason where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"real judgments not found at {SHARED}")
    return SHARED
