"""Blocks of products with one column: which start while attention still has its multiprocessors."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kernel_list import DEVICE, EQUAL, launches_of
from test_mul_mat_columns import declared

from gguflow.engine.graph import Operand
from gguflow.kernels.cuda.launch import DeviceInfo, Launch
from gguflow.kernels.cuda.one_column import blocks_of, shape_of

HALF = (228 << 10) // 2 - 1024 - 128  # of a multiprocessor's shared memory, for a block


def launch_of(dtype: str, n: int, k: int, device: DeviceInfo) -> Launch:
    w = Operand((n, k), dtype, 0.0, role="weight")
    (made,) = launches_of(declared("mul_mat", w, Operand((1, k))), device=device)
    assert isinstance(made, Launch)
    return made


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
@pytest.mark.parametrize(
    "dtype, n, k, blocks, warps, shares",
    [
        ("q4_0", 2048, 2048, 116, 16, False),  # which is enough for a pair of rows a warp
        ("q4_0", 3712, 4096, 116, 16, False),
        ("q4_0", 3714, 4096, 132, 16, True),
        ("q4_K", 4096, 4096, 132, 16, True),
        ("q8_0", 4096, 4096, 128, 8, True),  # with 16 warps two have no room in a multiprocessor
        ("q8_0", 3714, 4096, 117, 8, True),
        ("q8_0", 3712, 4096, 116, 16, False),
        ("q6_K", 4096, 8192, 132, 16, False),  # of which two have no room with half the warps
        ("q4_0", 4096, 14336, 132, 16, False),  # whose warps fill all stages
        ("q8_0", 4096, 14336, 132, 16, False),  # and are not to have two rows one after the other
        ("q4_0", 128_256, 4096, 132, 16, False),  # and take many rows
        ("q4_0", 128, 2048, 16, 16, False),
    ],
)
def test_blocks_that_attention_leaves_room_for(
    dtype: str, n: int, k: int, blocks: int, warps: int, shares: bool, device: DeviceInfo
) -> None:
    made = launch_of(dtype, n, k, device)
    assert made.grid == (blocks, 1, 1) and made.block == (32 * warps, 1, 1)
    assert (made.shared <= HALF) == shares


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_blocks_of_long_stages_fit_a_multiprocessor_by_twos(dtype: str) -> None:
    made = launch_of(dtype, 4096, 4096, DEVICE)
    assert made.grid == (128, 1, 1) and made.block == (256, 1, 1)
    assert "wide<" in made.kernel.entry and made.shared <= HALF
    assert launch_of(dtype, 4096, 14336, DEVICE).block == (512, 1, 1)


@pytest.mark.parametrize("dtype, device", [("f16", DEVICE), ("q8_0", DEVICE), ("q6_K", EQUAL)])
def test_what_kernels_declare_themselves_is_counted(
    nvrtc: Any, dtype: str, device: DeviceInfo
) -> None:
    made = launch_of(dtype, 4096, 4096, device)
    cubin = nvrtc.compile_source(made.kernel.source, [made.kernel.entry], "sm_90").cubin
    (declared,) = (n for name, n in sections(cubin) if name.startswith(".nv.shared._Z"))
    assert 2 * (made.shared + declared) <= 228 << 10


def sections(elf: bytes) -> Iterator[tuple[str, int]]:
    """Names and sizes of an object's sections (ELF-64)."""
    (at,) = struct.unpack_from("<Q", elf, 40)
    size, n, of_names = struct.unpack_from("<3H", elf, 58)
    heads = [struct.unpack_from("<2I4Q", elf, at + i * size) for i in range(n)]
    for name, *_, nbytes in heads:
        start = heads[of_names][4] + name
        yield elf[start : elf.index(b"\0", start)].decode(), nbytes


def test_matrices_beside_each_other_have_all_multiprocessors() -> None:
    assert blocks_of(1024, 16, False, DEVICE) == 132


def test_a_small_device_has_none_to_leave() -> None:
    small = DeviceInfo(sm_count=10)
    assert blocks_of(2048, 16, True, small) == 10
    assert shape_of(16, 4, 2048, 2, lambda w, s: 4096 + (w * s << 11), small) == (16, 4)
