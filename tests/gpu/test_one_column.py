"""Blocks of products with one column: which start while attention still has its multiprocessors."""

from __future__ import annotations

import pytest
from kernel_list import DEVICE, EQUAL, launches_of
from test_mul_mat_columns import declared

from gguflow.engine.graph import Operand
from gguflow.kernels.cuda.launch import DeviceInfo, Launch
from gguflow.kernels.cuda.one_column import blocks_of, stages_of

HALF = (228 << 10) // 2 - 1024  # of a multiprocessor's shared memory, for a block


def launch_of(dtype: str, n: int, k: int, device: DeviceInfo) -> Launch:
    w = Operand((n, k), dtype, 0.0, role="weight")
    (made,) = launches_of(declared("mul_mat", w, Operand((1, k))), device=device)
    assert isinstance(made, Launch)
    return made


@pytest.mark.parametrize("device", [DEVICE, EQUAL], ids=["", "equal bits"])
@pytest.mark.parametrize(
    "dtype, n, k, blocks, shares",
    [
        ("q4_0", 2048, 2048, 116, False),  # which is enough for a pair of rows a warp
        ("q4_0", 3712, 4096, 116, False),
        ("q4_0", 3714, 4096, 132, True),
        ("q4_K", 4096, 4096, 132, True),
        ("q8_0", 4096, 4096, 132, False),  # two of which have no room in one multiprocessor
        ("q4_0", 4096, 14336, 132, False),  # whose warps fill all stages
        ("q4_0", 128_256, 4096, 132, False),  # and take many rows
        ("q4_0", 128, 2048, 16, False),
    ],
)
def test_blocks_that_attention_leaves_room_for(
    dtype: str, n: int, k: int, blocks: int, shares: bool, device: DeviceInfo
) -> None:
    made = launch_of(dtype, n, k, device)
    assert made.grid == (blocks, 1, 1) and made.block == (512, 1, 1)
    assert (made.shared <= HALF) == shares


def test_matrices_beside_each_other_have_all_multiprocessors() -> None:
    assert blocks_of(1024, 16, False, DEVICE) == 132


def test_a_small_device_has_none_to_leave() -> None:
    small = DeviceInfo(sm_count=10)
    assert blocks_of(2048, 16, True, small) == 10
    assert stages_of(4, 2048, 16, 2, 4096, 32 << 10, small) == 4
