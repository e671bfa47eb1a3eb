"""Arguments have the size of the structs that kernels take (`test_some_of_every_kind_compile` in
test_compile.py), and another one would be noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from argument_sizes import with_checks

from gguflow.kernels.cuda.launch import fast_div, pack


def test_another_size_is_noticed(nvrtc: Any, tmp_path: Path) -> None:
    wrong = with_checks(tmp_path / "check.cu", "norm.cu", more=16)
    with pytest.raises(nvrtc.CompileError, match="static assertion failed"):
        nvrtc.compile_source(str(wrong), [], "sm_90")


def test_a_tensor_and_a_divisor_have_the_bytes_that_common_cuh_asserts() -> None:
    assert (len(pack(None)), len(fast_div(7))) == (80, 12)  # 72, to whole 16
