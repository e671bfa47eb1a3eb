"""Plain tables: aligned text that can be read by people and cut by other programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[object]], right: Iterable[int] = (), gap: str = "  ") -> str:
    """Rows of cells as aligned lines. right: columns whose cells end in line."""
    cells = [[str(c) for c in row] for row in rows]
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


def human_count(n: int) -> str:
    """`1.10 B`, `260.03 K`: llama.cpp's way to write numbers of parameters."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return str(n)
