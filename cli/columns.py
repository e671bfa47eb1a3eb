"""Plain tables: aligned text that can be read by people and cut by other programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gguflow.engine.harmless import one_line

if TYPE_CHECKING:
    from gguflow.engine.profile import Peaks


def columns(rows: Iterable[Sequence[object]], right: Iterable[int] = (), gap: str = "  ") -> str:
    """Rows of cells, a line each, aligned. right: columns whose cells end in line."""
    cells = [[one_line(str(c)) for c in row] for row in rows]
    if not cells:
        return ""
    to_right = set(right)
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join(
        gap.join(
            c.rjust(w) if i in to_right else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def peaks_line(peaks: Peaks) -> str:
    """`4,550 GB/s read, 60.1 TFLOP/s f32, ...`: what was measured, or that nothing was."""
    found = [f"{peaks.read_gbs:,.0f} GB/s read"] if peaks.read_gbs else []
    for kind, value in (
        ("FLOP/s f32", peaks.f32_gflops),
        ("FLOP/s f16", peaks.f16_gflops),
        ("FLOP/s bf16", peaks.bf16_gflops),
        ("OP/s int8", peaks.int8_gops),
    ):
        if value:
            found.append(f"{value / 1e3:,.1f} T{kind}" if value >= 1e4 else f"{value:,.0f} G{kind}")
    return ", ".join(found) or "no measured peaks"


def human_count(n: int) -> str:
    """`1.10 B`, `260.03 K`: llama.cpp's way to write numbers of parameters."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return str(n)


def size_text(n_bytes: int) -> str:
    """`807.69 MB`: as the hub writes sizes of files."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.2f} {unit}"
    return f"{n_bytes} B"
