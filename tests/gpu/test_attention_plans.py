"""Which kernels attention launches, without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_list import DEVICE, launches_of

from gguflow.engine.graph import F32, I32, Graph, dtype_by_name
from gguflow.engine.plan_key import PAGE
from gguflow.kernels.cuda import attention
from gguflow.kernels.cuda.launch import DeviceInfo, Launch

TENSOR = 72  # bytes of a kernel's operand: address, extents, strides


def planned(
    n_tok: int, n_ctx: int, heads: tuple[int, int], hd: int, t: str = "f16", single: int = 0,
    device: DeviceInfo = DEVICE,
) -> list[Launch]:  # fmt: skip
    g, dtype = Graph(), dtype_by_name(t)
    q, pos, seq = (
        g.input("q", F32, (n_tok, heads[0], hd)),
        *(g.input(i, I32, (n_tok,)) for i in "ps"),
    )
    kv = [g.state(name, dtype, (n_ctx, heads[1], hd)) for name in "kv"]
    table = g.input("t", I32, (max(single, 1), n_ctx // PAGE))
    node = g.attention(q, *kv, pos, seq, table, scale=1.0, n_single=single)
    launches = [x for x in launches_of(node, device=device) if isinstance(x, Launch)]
    splits = {"attention_decode.cu": 1, "attention.cu": 2}
    for launch in launches:
        axis = splits.get(launch.kernel.source)
        if axis is not None and launch.grid[axis] > 1:
            blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
            assert attention.scratch_bytes(node, device) >= 4 * blocks * (hd + 2)
    return launches


def test_one_token_shares_the_cache_among_all_multiprocessors() -> None:
    (one,) = planned(1, 8192, (32, 8), 128, single=1)
    assert (one.kernel.entry, one.grid) == ("attention_decode<f16, f16, 128, 1>", (8, 16, 1))
    assert planned(1, 320, (32, 8), 128, single=1)[0].grid == (8, 3, 1)
    (wide,) = planned(1, 8192, (40, 2), 128, single=1)  # two tiles of at most 16 heads
    assert (wide.kernel.entry, wide.grid) == ("attention_decode<f16, f16, 128, 2>", (2, 33, 2))


def test_a_decoding_block_fits_beside_another_kernels() -> None:
    for t in ("f16", "q8_0"):
        for single in (1, 64):
            (launch,) = planned(single, 8192, (32, 8), 128, t, single)
            assert launch.shared <= (72 if single == 1 else 100) << 10


@pytest.mark.parametrize(
    "hd, t", [(80, "f16"), (80, "bf16"), (96, "f16"), (96, "bf16"), (256, "f16"), (256, "q8_0")]
)
def test_single_tokens_and_prompts_of_heads_of_other_sizes(hd: int, t: str) -> None:
    name = {"q8_0": "block_q8_0"}.get(t, t)
    (one,) = planned(1, 8192, (8, 4), hd, t, 1)
    assert one.kernel.entry == f"attention_decode<{name}, {name}, {hd}, 1>"
    chunks, listed = planned(70, 2048, (8, 4), hd, t, 4)
    assert listed.kernel.entry == f"attention_decode_listed<{name}, {name}, {hd}, 1>"
    keys = 64 if hd == 256 else 128
    assert chunks.kernel.entry == f"attention_prefill<{name}, {name}, {hd}, {keys}>"
    assert beside(chunks) and beside(listed)


def beside(launch: Launch) -> bool:
    """Whether it runs beside another, as kernels are told."""
    at = 7 * TENSOR + 72
    return bool(np.frombuffer(launch.args[at : at + 4], np.int32)[0])


FLOAT_SINGLES = [
    ((8, 4), 96, "q8_0"),
    ((32, 2), 256, "f16"),
    ((4, 2), 512, "f16"),
]


@pytest.mark.parametrize("heads, hd, t", FLOAT_SINGLES)
def test_single_tokens_in_float_leave_prompts_to_tensor_cores(
    heads: tuple[int, int], hd: int, t: str
) -> None:
    for n in (1, 5):
        (launch,) = planned(n, 2048, heads, hd, t, n)
        assert launch.kernel.source == "attention.cu"
        chunks, singles = planned(70 + n, 2048, heads, hd, t, n)
        assert singles.kernel == launch.kernel and singles.grid[:2] == launch.grid[:2]
        assert chunks.kernel.source == "attention_prefill.cu"
        assert chunks.kernel == planned(70, 2048, heads, hd, t)[0].kernel
        # attention.cu lets the next launch in before its own wait.
        assert not beside(chunks) and not beside(singles)


@pytest.mark.parametrize("kib", [99, 163, 227])
def test_tiles_are_those_of_many_and_of_few(kib: int) -> None:
    device = DeviceInfo(shared_per_block=kib << 10)
    for hd in attention.HEAD_SIZES:
        few, many = (planned(n, 2048, (8, 4), hd, device=device)[0].kernel for n in (5, 70))
        assert few.entry.replace("_few", "") == many.entry
        assert many.source == ("attention_prefill.cu" if hd < 512 or kib > 200 else "attention.cu")


def test_wide_heads_have_smaller_blocks() -> None:
    (many,) = planned(512, 512, (8, 4), 256)
    assert many.kernel.entry == "attention_prefill<f16, f16, 256, 64>"
    assert many.grid == (4, 16, 1)
    (many,) = planned(512, 512, (8, 4), 512)
    assert many.kernel.entry == "attention_prefill<f16, f16, 512, 32>"


def test_prompts_are_tiles_of_rows() -> None:
    (many,) = planned(512, 512, (32, 8), 64, "q8_0")
    assert many.kernel.entry == "attention_prefill<block_q8_0, block_q8_0, 64, 128>"
    assert many.grid == (8, 16, 1)


def test_few_rows_of_prompts_are_shared_among_multiprocessors() -> None:
    for n, tiles in ((2, 1), (16, 1), (17, 2), (64, 4)):
        (few,) = planned(n, 8192, (32, 8), 128)
        assert few.kernel.entry == "attention_prefill_few<f16, f16, 128, 128>"
        assert few.grid == (8, tiles + 1, 4)  # 2048 keys each
    (deep,) = planned(64, 1 << 20, (32, 8), 128)
    assert deep.grid == (8, 4 + 1, 1)  # the parts would take too much room


@pytest.mark.parametrize("hd, t", [(72, "f16"), (128, "f32"), (320, "bf16")])
def test_what_tensor_cores_do_not_take_runs_in_float(hd: int, t: str) -> None:
    for n, grid in ((1, (16, 1, 8)), (512, (16, 512, 1))):
        (launch,) = planned(n, 4096, (16, 8), hd, t)
        assert (launch.kernel.source, launch.grid) == ("attention.cu", grid)
        # How a token's keys are cut is the same whatever the grid is.
        numbers = 7 * TENSOR + 20  # after the tensors and what the op is told
        assert np.frombuffer(launch.args[numbers : numbers + 4], np.int32) == 8


def test_single_tokens_are_a_list_for_two_blocks_a_multiprocessor() -> None:
    (listed,) = planned(128, 8192, (32, 8), 128, single=128)
    assert listed.kernel.entry == "attention_decode_listed<f16, f16, 128, 1>"
    assert listed.grid == (2 * DEVICE.sm_count, 1, 1)
    (wide,) = planned(128, 8192, (40, 2), 128, single=128)  # two tiles of 16 rows a token
    assert wide.kernel.entry == "attention_decode_listed<f16, f16, 128, 2>"
    assert wide.grid == (DEVICE.sm_count, 1, 1)
    assert planned(2, 128, (4, 1), 64, single=2)[0].grid == (2, 1, 1)
    assert [x.kernel.entry[:23] for x in planned(600, 512, (8, 2), 64, single=600)] == [
        "attention_decode_listed"
    ] * 3


@pytest.mark.parametrize("n_chunk", [3, 448])
def test_a_launch_has_the_tokens_of_its_kind(n_chunk: int) -> None:
    chunks, singles = planned(64 + n_chunk, 2048, (32, 8), 128, single=64)
    assert singles.kernel.entry.startswith("attention_decode_listed<")
    assert chunks.kernel.entry.startswith("attention_prefill")
    for i, rows, nbytes in ((0, 2, 32 * 128 * 4), (1, 2, 32 * 128 * 4), (4, 0, 4), (5, 0, 4)):
        first, second = (
            np.frombuffer(x.args[i * TENSOR : (i + 1) * TENSOR], np.int64)
            for x in (singles, chunks)
        )
        assert second[0] - first[0] == 64 * nbytes
        assert (first[1 + rows], second[1 + rows]) == (64, n_chunk)
