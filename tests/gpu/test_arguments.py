"""The bytes that launch files pack are as many as the structs have that kernels take."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kernel_list import all_launches, entries_by_source

from gguflow.kernels.cuda.launch import fast_div, pack

ARGUMENT = """
#include "cuda/{source}"
template <class>
struct Argument;
template <class A>
struct Argument<void (*)(A)> {{
  static constexpr int bytes = (sizeof(A) + 15) / 16 * 16;
}};
"""
CHECK = 'static_assert(Argument<decltype(&{entry})>::bytes == {nbytes}, "{entry}");\n'


@cache
def packed(source: str) -> set[tuple[str, int]]:
    """(entry, bytes to whole 16) of every launch of this source."""
    return {
        (x.kernel.entry, -(-x.n_argument_bytes // 16) * 16)
        for x in all_launches()
        if x.kernel.source == source
    }


def compile_checks(nvrtc: Any, path: Path, source: str, sizes: set[tuple[str, int]]) -> None:
    checks = (CHECK.format(entry=entry, nbytes=nbytes) for entry, nbytes in sorted(sizes))
    path.write_text(ARGUMENT.format(source=source) + "".join(checks))
    nvrtc.compile_source(str(path), [], "sm_90")


@pytest.mark.parametrize("source", sorted(entries_by_source()))
def test_arguments_have_the_size_of_the_struct(nvrtc: Any, tmp_path: Path, source: str) -> None:
    compile_checks(nvrtc, tmp_path / "check.cu", source, packed(source))


def test_another_size_is_noticed(nvrtc: Any, tmp_path: Path) -> None:
    wrong = {(entry, nbytes + 16) for entry, nbytes in packed("norm.cu")}
    with pytest.raises(nvrtc.CompileError, match="static assertion failed"):
        compile_checks(nvrtc, tmp_path / "check.cu", "norm.cu", wrong)


def test_a_tensor_and_a_divisor_have_the_bytes_that_common_cuh_asserts() -> None:
    assert (len(pack(None)), len(fast_div(7))) == (80, 12)  # 72, to whole 16
