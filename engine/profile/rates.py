"""What moves bytes and computes, and how fast."""

from __future__ import annotations


class Rates:
    """GB/s and GFLOP/s of something with `us` microseconds, `bytes` and `flops`; 0 for no time."""

    __slots__ = ()
    us: float
    bytes: int
    flops: int

    @property
    def gbs(self) -> float:
        return self.bytes / self.us / 1e3 if self.us else 0.0

    @property
    def gflops(self) -> float:
        return self.flops / self.us / 1e3 if self.us else 0.0
