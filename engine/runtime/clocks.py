"""One clock for programs that ran at the same time, each with a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gguflow.engine.backends.base import Ticks
from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class Signal:
    """Something that arrives after it was sent: programs by name, each with its clock's reading."""

    source: str
    sent: int
    target: str
    got: int


def offsets(
    ticks: Mapping[str, Ticks], signals: Sequence[Signal], began: int, over: int
) -> dict[str, int]:
    """Nanoseconds to add to each program's clock to have the host's.

    began, over: the run in the host's time. What is signalled arrives later, so each signal between
    a program and one whose offset is known bounds it from one side, and so do the start and the end
    of the run; the middle of what is left is off by half the time a signal takes.
    """
    known = {name: 0 for name, t in ticks.items() if t.of_host}
    for name, t in ticks.items():
        if name in known:
            continue
        least, most = [began - int(t.ns[0])], [over - int(t.ns[-1])]
        for s in signals:
            if s.target == name and s.source in known:
                least.append(s.sent + known[s.source] - s.got)
            elif s.source == name and s.target in known:
                most.append(s.got + known[s.target] - s.sent)
        known[name] = (max(least) + min(most)) // 2
    return known


def shifted(ticks: Ticks, by: int) -> np.ndarray:
    """Readings in the host's time."""
    return ticks.ns if ticks.of_host else ticks.ns + by
