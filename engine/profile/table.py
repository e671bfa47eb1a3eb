"""The terminal table: where the time of each phase went, by op, by module or by layer."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .group import GROUPINGS, Total, add_up, largest, regroup, totals_by_name
from .record import PHASES, Recording

COLUMNS = ("calls", "total ms", "%", "us/call", "GB/s", "GFLOP/s", "of peak")
WANTED = ("total ms", "%", "calls", "us/call", "GB/s", "GFLOP/s", "of peak")  # where room is short
LEAST_NAME, NUMBER = 28, 11  # characters for names with their borders, and for a number


def print_table(
    recording: Recording,
    console: Console,
    by: str = "op",
    phase: str | None = None,
    limit: int | None = None,
) -> None:
    """Print one table a phase, the longest groups first.

    by: "op", "module" or "layer". phase: only this one. limit: so many groups; the rest is added
    up in one line, so that the table always sums to the wall time. Raises ValueError for another
    `by`.
    """
    n_numbers = max(2, (console.width - LEAST_NAME) // NUMBER)
    if by not in GROUPINGS:
        raise ValueError(f"grouping {by!r}, expected one of {', '.join(GROUPINGS)}")
    groups = regroup(totals_by_name(recording), GROUPINGS[by])
    phases = dict.fromkeys([*PHASES, *(g.phase for g in groups)])
    shown = 0
    for p in phases:
        of_phase = [g for g in groups if g.phase == p]
        if of_phase and phase in (None, p):
            console.print(_phase_table(recording, of_phase, p, by, limit, n_numbers))
            shown += 1
    if not shown:
        console.print(f"No {phase or 'profiled'} steps.")


def _phase_table(
    recording: Recording, groups: list[Total], phase: str, by: str, limit: int | None,
    n_numbers: int,
) -> Table:  # fmt: skip
    """n_numbers: columns there is room for beside the names, which come first."""
    steps = [s for s in recording.steps if s.phase == phase]
    tokens = sum(s.n_tokens for s in steps)
    wall = sum(s.wall_us for s in steps)
    rate = f", {tokens / wall * 1e6:,.1f} tokens/s" if wall else ""
    table = Table(
        title=Text(
            f"{phase}: {len(steps):,} step{'s' * (len(steps) != 1)}, {tokens:,} tokens, "
            f"{wall / 1e3:,.1f} ms{rate}",
            "bold",
        ),
        title_justify="left",
    )
    table.add_column(by, overflow="fold", min_width=LEAST_NAME - NUMBER)
    kept = [c for c in COLUMNS if WANTED.index(c) < n_numbers]
    at = [COLUMNS.index(c) for c in kept]
    for column in kept:
        table.add_column(column, justify="right", no_wrap=True)
    for g in largest(groups, limit):
        cells = _cells(g, wall)
        table.add_row(Text(g.key), *(cells[i] for i in at))
    table.add_section()
    cells = _cells(add_up(groups, "total"), wall)
    table.add_row("total", *(cells[i] for i in at), style="bold")
    return table


def _cells(g: Total, wall_us: float) -> list[str]:
    return [
        f"{g.calls:,}",
        f"{g.us / 1e3:,.2f}",
        f"{100 * g.us / wall_us:.1f}" if wall_us else "—",
        f"{g.us_per_call:,.1f}",
        f"{g.gbs:,.1f}" if g.bytes else "—",
        f"{g.gflops:,.1f}" if g.flops else "—",
        f"{100 * g.share:.0f} %" if g.share is not None else "—",
    ]
