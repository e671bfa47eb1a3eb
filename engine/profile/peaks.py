"""What a backend can do at best: the roofs that a profile's ops are held against.

Backends measure their own peaks with their own instructions (`Backend.peaks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured peaks of one backend. None where nothing measured it.

    read_gbs: GB/s read from main memory. f32_gflops: GFLOP/s of float32 matrix products.
    int8_gops: giga operations a second of int8 dot products, two a multiply-add. f16_gflops:
    GFLOP/s of float16 matrix products, where units of their own do them. bf16_gflops: of bf16 ones,
    where they are faster than that.
    """

    read_gbs: float | None = None
    f32_gflops: float | None = None
    int8_gops: float | None = None
    f16_gflops: float | None = None
    bf16_gflops: float | None = None

    def compute(self, types: Sequence[str]) -> float | None:
        """The compute roof of an op with these types (result first): the highest known one that its
        operands allow. Quantized ones can be multiplied as int8 or unpacked to float16."""
        quantized = any(is_quantized(t) for t in types)
        if quantized and (roofs := [r for r in (self.int8_gops, self.f16_gflops) if r]):
            return max(roofs)
        if self.bf16_gflops and "bf16" in types:
            return self.bf16_gflops
        if self.f16_gflops and any(t in ("f16", "bf16") for t in types):
            return self.f16_gflops
        return self.f32_gflops

    def share(self, gbs: float, gflops: float, types: Sequence[str]) -> float | None:
        """The larger of the shares of the memory roof and of the compute roof; None if neither
        is known. Above 1 when the data came from a cache faster than main memory."""
        shares = []
        if self.read_gbs:
            shares.append(gbs / self.read_gbs)
        if roof := self.compute(types):
            shares.append(gflops / roof)
        return max(shares, default=None)


@cache
def is_quantized(type_name: str) -> bool:
    """Whether ggml's type `type_name` is a block-quantized one, told by its name alone, so that
    dumps with types this build does not know can still be read."""
    return type_name.lower().startswith(("q", "iq", "tq", "mxfp", "nvfp"))
