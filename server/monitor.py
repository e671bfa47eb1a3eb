"""What the engine does, step by step, for whoever watches: the page and its timelines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.profile import Peaks, Profile
from gguflow.engine.profile.group import GROUPINGS, regroup, totals_by_name
from gguflow.engine.profile.machine import machine_name
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Token
from gguflow.engine.serving.stats import EngineStats

from .memory import memory_of

if TYPE_CHECKING:
    from gguflow.engine.model import Model

KEPT_STEPS = 600
KEPT_REQUESTS = 256
PROFILED = 8  # steps in a profile of the running batch
MAX_TIMES = 4096  # tokens of a request whose times are kept


@dataclass
class Step:
    """A step of the engine: when it began (seconds since 1970), how long it took, what it did."""

    at: float
    ms: float
    n_prompt: int
    n_generated: int
    n_running: int
    n_waiting: int
    n_used: int  # pages

    def row(self) -> list[float]:
        """As the page takes it."""
        return [round(self.at, 4), round(self.ms, 3), self.n_prompt, self.n_generated,
                self.n_running, self.n_waiting, self.n_used]  # fmt: skip


class Watched(Protocol):
    """What is seen of a model's engine, or of its replicas together."""

    steps: deque[Step]
    n_seen: int

    @property
    def stats(self) -> EngineStats: ...
    @property
    def has_work(self) -> bool: ...
    def sequences(self) -> list[list[int]]: ...
    def watch_ops(self, done: Callable[[Profile], None]) -> None: ...
    async def memory(self) -> dict[str, Any]: ...


class WatchedEngine(Engine):
    """An engine that remembers its last steps, and profiles a few when asked to."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.n_seen = 0
        self._wanted: Callable[[Profile], None] | None = None
        self._profile: Profile | None = None
        self._peaks: dict[str, Peaks] | None = None

    async def memory(self) -> dict[str, Any]:
        """See `memory_of`."""
        return memory_of(self.model)

    def step(self) -> list[Token]:
        """One step, remembered."""
        self._begin_profile()
        before = self.stats
        at, began = time.time(), time.perf_counter()
        tokens = super().step()
        ms = 1e3 * (time.perf_counter() - began)
        s = self.stats
        if s.n_steps != before.n_steps or s.n_generated != before.n_generated:
            used = sum(s.n_pages.values()) - sum(s.n_available.values())
            self.steps.append(
                Step(
                    at, ms, s.n_prompt - before.n_prompt, s.n_generated - before.n_generated,
                    s.n_running, s.n_waiting, used,
                )
            )  # fmt: skip
            self.n_seen += 1
        self._end_profile()
        return tokens

    def sequences(self) -> list[list[int]]:
        """Of every sequence in the batch: its number, tokens of its prompt, tokens generated, rows
        in the cache. From another thread: as good as at once."""
        return [
            [job.id, job.n_prompt, job.n_generated, job.n_rows]
            for job in [*self._scheduler.running]
        ]

    # -- profiles --------------------------------------------------------------------------------

    def watch_ops(self, done: Callable[[Profile], None]) -> None:
        """Record the next steps op by op; `done` is called on the stepping thread."""
        self._wanted = done

    def _begin_profile(self) -> None:
        # Steps on their way to a device know no profile: it begins when they are in.
        if self._wanted is None or self._profile is not None or self.runs_ahead:
            return
        if self._peaks is None:
            backends = self.model.backends.items()
            roofs = {name: b.peaks() for name, b in backends}
            self._peaks = {name: Peaks(*r) for name, r in roofs.items() if r}
        self._profile = Profile(
            Path(self.model.source.path).name, self.model.n_threads, self._peaks,
            machine=machine_name(),
        )  # fmt: skip
        self.record(self._profile)

    def _end_profile(self) -> None:
        if self._profile is None or (len(self._profile) < PROFILED and self.has_work):
            return
        profile, done = self._profile, self._wanted
        self._profile = self._wanted = None
        self.record(None)
        if done is not None and len(profile):
            done(profile)


def ops_table(profile: Profile, most: int = 40) -> dict[str, Any]:
    """Time by op and by layer of a profile: [name, calls, microseconds, bytes, flops, share]."""
    totals = totals_by_name(profile)
    table: dict[str, Any] = {"machine": profile.header.machine, "steps": len(profile)}
    table["peaks"] = {b: [p.read_gbs, p.f32_gflops, p.int8_gops, p.f16_gflops]
                      for b, p in profile.header.peaks.items()}  # fmt: skip
    for by in ("op", "layer", "module"):
        rows = []
        for group in regroup(totals, GROUPINGS[by])[:most]:
            share = None if group.share is None else round(group.share, 4)
            rows.append([f"{group.key}", group.phase, group.calls, round(group.us, 2), group.bytes,
                         group.flops, share])  # fmt: skip
        table[by] = rows
    return table


@dataclass
class Timeline:
    """A request's own: seconds since 1970 of what happened to it.

    times: of its tokens, the first MAX_TIMES. queued, admitted: when it came, when the engine got
    it. finish: why it ended.
    """

    id: str
    model: str
    kind: str
    key: str
    queued: float = field(default_factory=time.time)
    admitted: float = 0.0
    n_prompt: int = 0
    n_choices: int = 1
    n_generated: int = 0
    times: list[float] = field(default_factory=list)
    ended: float = 0.0
    finish: str | None = None

    def tokens(self, n: int) -> None:
        """So many tokens came just now."""
        self.n_generated += n
        if len(self.times) < MAX_TIMES:
            now = time.time()
            self.times += [now] * n

    def row(self, whole: bool = False) -> dict[str, Any]:
        """As the page takes it; whole: with the time of every token."""
        out: dict[str, Any] = {
            "id": self.id, "model": self.model, "kind": self.kind, "key": self.key,
            "queued": self.queued, "admitted": self.admitted, "prompt": self.n_prompt,
            "choices": self.n_choices, "generated": self.n_generated,
            "first": self.times[0] if self.times else 0.0, "ended": self.ended,
            "finish": self.finish,
        }  # fmt: skip
        if whole:
            out["times"] = [round(t - self.queued, 5) for t in self.times]
        return out


class Requests:
    """The requests in work and the last ones that ended, by id."""

    def __init__(self) -> None:
        self.live: dict[str, Timeline] = {}
        self._ended: deque[Timeline] = deque(maxlen=KEPT_REQUESTS)

    def begin(self, line: Timeline) -> None:
        """A request has come."""
        self.live[line.id] = line

    def end(self, line: Timeline, finish: str) -> None:
        """It has ended."""
        line.ended, line.finish = time.time(), line.finish or finish
        self.live.pop(line.id, None)
        self._ended.append(line)

    def find(self, id: str) -> Timeline | None:
        """One of them."""
        return self.live.get(id) or next((t for t in self._ended if t.id == id), None)

    def rows(self, most: int = 100) -> list[dict[str, Any]]:
        """Those in work, oldest first, then those that ended last."""
        recent = [*self._ended][-most:][::-1]
        return [t.row() for t in [*[*self.live.values()][:most], *recent]]
