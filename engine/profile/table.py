"""The terminal table: where the time of each phase went, by op, by module or by layer."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .group import GROUPINGS, Total, add_up, largest, regroup, totals_by_name
from .record import PHASES, Recording


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
    if by not in GROUPINGS:
        raise ValueError(f"grouping {by!r}, expected one of {', '.join(GROUPINGS)}")
    groups = regroup(totals_by_name(recording), GROUPINGS[by])
    phases = dict.fromkeys([*PHASES, *(g.phase for g in groups)])
    shown = 0
    for p in phases:
        of_phase = [g for g in groups if g.phase == p]
        if of_phase and phase in (None, p):
            console.print(_phase_table(recording, of_phase, p, by, limit))
            shown += 1
    if not shown:
        console.print(f"No {phase or 'profiled'} steps.")


def _phase_table(
    recording: Recording, groups: list[Total], phase: str, by: str, limit: int | None
) -> Table:
    steps = [s for s in recording.steps if s.phase == phase]
    tokens = sum(s.n_tokens for s in steps)
    wall = sum(s.wall_us for s in steps)
    rate = f", {tokens / wall * 1e6:,.1f} tokens/s" if wall else ""
    table = Table(
        title=f"{phase}: {len(steps):,} step{'s' * (len(steps) != 1)}, {tokens:,} tokens, "
        f"{wall / 1e3:,.1f} ms{rate}",
        title_justify="left",
        title_style="bold",
    )
    table.add_column(by, overflow="fold")
    for column in ("calls", "total ms", "%", "us/call", "GB/s", "GFLOP/s", "of peak"):
        table.add_column(column, justify="right", no_wrap=True)
    for g in largest(groups, limit):
        table.add_row(Text(g.key), *_cells(g, wall))
    table.add_section()
    table.add_row("total", *_cells(add_up(groups, "total"), wall), style="bold")
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
