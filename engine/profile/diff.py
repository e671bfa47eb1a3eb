"""Two profiles joined by graph name and phase: what became faster, what slower."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gguflow.engine.dataclass import dataclass

from .group import regroup, totals_by_name
from .record import PHASES, Recording


@dataclass(slots=True)
class DiffRow:
    """One graph name in two runs: its time a step of the phase, None where it is absent."""

    name: str
    phase: str
    op: str
    before_us: float | None
    after_us: float | None

    @property
    def delta_us(self) -> float:
        """Change of the time a step spends here; an absent name spends none."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def ratio(self) -> float | None:
        """After over before; None where one side is absent or took no time."""
        return self.after_us / self.before_us if self.before_us and self.after_us else None


def diff(before: Recording, after: Recording) -> list[DiffRow]:
    """Every name of either run, the biggest change first within its phase."""
    a, b = _per_step(before), _per_step(after)
    rows = []
    for phase, name in a | b:
        op = (b.get((phase, name)) or a[phase, name])[0]
        old, new = a.get((phase, name)), b.get((phase, name))
        rows.append(DiffRow(name, phase, op, old and old[1], new and new[1]))
    return sorted(rows, key=lambda r: (_phase_order(r.phase), -abs(r.delta_us)))


def _phase_order(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def _per_step(recording: Recording) -> dict[tuple[str, str], tuple[str, float]]:
    """(phase, name) -> (op, microseconds a step)."""
    n_steps: dict[str, int] = {}
    for s in recording.steps:
        n_steps[s.phase] = n_steps.get(s.phase, 0) + 1
    return {
        (t.phase, t.key): (t.op, t.us / n_steps[t.phase])
        for t in regroup(totals_by_name(recording), lambda t: t.key)
    }


def _tokens_per_step(recording: Recording, phase: str) -> float:
    tokens = [s.n_tokens for s in recording.steps if s.phase == phase]
    return sum(tokens) / len(tokens) if tokens else 0.0


def print_diff(before: Recording, after: Recording, console: Console, limit: int = 20) -> None:
    """Print each phase's `limit` biggest changes and its total, as time a step."""
    rows = diff(before, after)
    if not rows:
        console.print("Both profiles are empty.")
    for phase in dict.fromkeys(r.phase for r in rows):
        of_phase = [r for r in rows if r.phase == phase]
        table = Table(title=Text(f"{phase}: time a step", "bold"), title_justify="left")
        table.add_column("name", overflow="fold")
        table.add_column("op", style="dim")
        for column in ("before ms", "after ms", "change ms", "change"):
            table.add_column(column, justify="right", no_wrap=True)
        for r in of_phase[:limit]:
            table.add_row(Text(r.name), Text(r.op), *_cells(r))
        whole = DiffRow(
            "whole step",
            phase,
            "",
            sum(r.before_us or 0.0 for r in of_phase) or None,
            sum(r.after_us or 0.0 for r in of_phase) or None,
        )
        table.add_section()
        table.add_row("whole step", "", *_cells(whole), style="bold")
        console.print(table)
        if len(of_phase) > limit:
            console.print(f"{len(of_phase) - limit} smaller changes not shown.", style="dim")
        n_a, n_b = _tokens_per_step(before, phase), _tokens_per_step(after, phase)
        if n_a and n_b and n_a != n_b:
            console.print(
                f"Not like for like: {n_a:g} tokens a step before, {n_b:g} after.", style="yellow"
            )


def _cells(r: DiffRow) -> list[str | Text]:
    style = "red" if r.delta_us > 0 else "green"
    change = (
        "new"
        if r.before_us is None
        else "gone"
        if r.after_us is None
        else "—"
        if r.ratio is None
        else f"{100 * (r.ratio - 1):+.1f} %"
    )
    return [
        "—" if r.before_us is None else f"{r.before_us / 1e3:.3f}",
        "—" if r.after_us is None else f"{r.after_us / 1e3:.3f}",
        Text(f"{r.delta_us / 1e3:+.3f}", style=style),
        Text(change, style=style),
    ]
