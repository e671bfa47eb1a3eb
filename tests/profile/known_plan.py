"""A plan and clock reads whose every number is known beforehand."""

from __future__ import annotations

import numpy as np

from gguflow.engine.profile import Peaks, PlanRow, PlanRows

# 10 GB/s and 100 GFLOP/s: bytes/10 and flops/100 are the ideal nanoseconds.
PEAKS = Peaks(read_gbs=10.0, f32_gflops=100.0, int8_gops=400.0)
N_LAYERS = 3
OP_US = {"attn.norm": 1, "attn.q": 10, "attn.out": 4, "ffn.down": 20}  # in every layer
OUTPUT_US = 50
NATIVE_US = N_LAYERS * sum(OP_US.values()) + OUTPUT_US
HOST_US = 5


def plan(backend: str = "cpu") -> PlanRows:
    """Three layers of four ops and an output; attention's cost grows with the position."""
    rows: list[PlanRow] = []

    def add(name: str, op: str, nbytes: int, flops: int, types: tuple[str, ...], **more) -> None:
        rows.append(
            PlanRow(
                name=name,
                op=op,
                backend=backend,
                kernel=f"{op}_test",
                shapes=((1, 8),) * len(types),
                types=types,
                bytes=nbytes,
                flops=flops,
                index=len(rows),
                **more,
            )
        )

    for i in range(N_LAYERS):
        f32 = ("f32", "f32")
        add(f"blk.{i}.attn.norm", "rms_norm", 1_000, 100, f32)
        add(f"blk.{i}.attn.q", "mul_mat", 50_000, 80_000, ("f32", "q4_0", "f32"))
        add(f"blk.{i}.attn.out", "attention", 0, 0, f32, cost=lambda n: (100 * n, 200 * n))
        add(f"blk.{i}.ffn.down", "mul_mat", 100_000, 160_000, ("f32", "q4_0", "f32"))
    add("output", "mul_mat", 400_000, 1_000_000, ("f32", "f32", "f32"))
    return tuple(rows)


def clock_reads(us: list[float]) -> np.ndarray:
    """Clock reads of ops that take so many microseconds, on a clock that began long ago."""
    return np.cumsum([10**15, *(round(1000 * u) for u in us)]).astype(np.int64)
