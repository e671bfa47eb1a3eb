"""Blocks of products with one column: which start while attention still has its multiprocessors."""

from __future__ import annotations

import pytest
from kernel_list import DEVICE, EQUAL, launches_of
from test_mul_mat_columns import declared

from gguflow.engine.graph import Operand
from gguflow.kernels.cuda.launch import DeviceInfo, Launch
from gguflow.kernels.cuda.one_column import blocks_of, shape_of

HALF = (228 << 10) // 2 - 1024  # of a multiprocessor's shared memory, for a block


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
def test_blocks_of_long_stages_have_room_beside_attention(dtype: str) -> None:
    made = launch_of(dtype, 4096, 4096, DEVICE)
    assert made.grid == (128, 1, 1) and made.block == (256, 1, 1)
    assert "wide<" in made.kernel.entry and HALF < made.shared + 2048 <= (228 - 72) << 10
    assert launch_of(dtype, 4096, 14336, DEVICE).block == (512, 1, 1)


def test_matrices_beside_each_other_have_all_multiprocessors() -> None:
    assert blocks_of(1024, 16, False, DEVICE) == 132


def test_a_small_device_has_none_to_leave() -> None:
    small = DeviceInfo(sm_count=10)
    assert blocks_of(2048, 16, True, small) == 10
    assert shape_of(16, 4, 2048, 2, 4096, 2 << 10, small) == (16, 4)
