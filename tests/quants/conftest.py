"""The native libraries that the tests of the quantized types run against."""

from __future__ import annotations

import ctypes
import os
from importlib.resources import files
from pathlib import Path

import pytest
from quant_helpers import Native

# A directory of libraries to test instead of the installed ones, while developing kernels.
LIB_DIR = Path(os.environ.get("GGUFLOW_TEST_LIB_DIR") or str(files("gguflow.kernels.cpu") / "lib"))


@pytest.fixture(
    scope="session", params=["baseline", "avx2", "avx512", "avx512bf16", "amx", "dotprod", "i8mm"]
)
def native(request: pytest.FixtureRequest) -> Native:
    base, path = (LIB_DIR / f"libgguflow_cpu_{isa}.so" for isa in ("baseline", request.param))
    if not base.is_file() or not path.is_file():
        pytest.skip(f"{path.name} is not built")
    if not ctypes.CDLL(str(base)).gf_cpu_supports(request.param.encode()):
        pytest.skip(f"this machine does not run {request.param}")
    return Native(path)
