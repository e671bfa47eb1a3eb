"""What the GPU tests share, with the harness of tests/ops and the helpers of tests/serving."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

for folder in ("ops", "serving"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
# Eight streams that wait for each other, on one GPU: with as many queues as it has by default, two
# of them share one with others of this process, and one waits behind who waits for it.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture(scope="session")
def gpu() -> Any:
    """The CUDA backend; skips with the reason when there is no GPU to use."""
    from gguflow.engine.backends.base import find_backend
    from gguflow.engine.backends.cuda import CudaError

    try:
        return find_backend("cuda")
    except CudaError as e:
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def nvrtc() -> Any:
    """The compiler; skips with the reason when it is not installed."""
    from gguflow.kernels.cuda import jit

    try:
        jit.compiler_version()
    except jit.CompileError as e:
        pytest.skip(str(e))
    return jit
