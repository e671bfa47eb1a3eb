"""The structs that Python and the CPU kernels share have one layout."""

from __future__ import annotations

import ctypes

import pytest

from gguflow.engine.backends.cpu import native
from gguflow.engine.backends.cpu.abi import MAX_DIMS, MAX_SRC, PARAM_BYTES, GfOp, GfTensor


def test_sizes_are_those_that_abi_h_asserts() -> None:
    assert ctypes.sizeof(GfTensor) == 16 + 16 * MAX_DIMS
    assert GfOp.dst.offset == 32
    assert ctypes.sizeof(GfOp) == 32 + (1 + MAX_SRC) * ctypes.sizeof(GfTensor) + PARAM_BYTES


@pytest.mark.parametrize("isa", native.runnable_isas())
@pytest.mark.parametrize("name", ["GfOp", "GfTensor"])
def test_a_library_with_another_layout_is_refused(
    isa: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Longer(getattr(native, name)):  # type: ignore[misc]
        _fields_ = [("more", ctypes.c_int64)]

    path = native._library_path(isa)
    native.CpuLibrary(isa, path)
    monkeypatch.setattr(native, name, Longer)
    struct = name.removeprefix("Gf").lower()
    with pytest.raises(native.CpuLibraryError, match=rf"gf_{struct} has \d+ bytes, expected \d+"):
        native.CpuLibrary(isa, path)
