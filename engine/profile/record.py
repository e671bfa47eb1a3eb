"""Collecting a profile: stored as raw clock reads while the model runs, turned into rows at export.

In use:

    profile = Profile(model="tinyllama Q4_0", threads=2, peaks={"cpu": Peaks(30.0, 200.0, 900.0)})
    rows = tuple(PlanRow.of(node, backend="cpu") for node in nodes)  # once a plan
    profile.add_step("decode", 1, rows, ends_ns, wall_ns, n_past=17)  # every step
    write_profile(profile, "run.html")
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from gguflow.engine.dataclass import dataclass, field

from .machine import machine_name
from .peaks import Peaks
from .plan_rows import PlanRow, PlanRows

_LATEST = np.iinfo(np.int64).max
HOST = "host"  # name, op and backend of the row for a step's time outside native code
PHASES = ("prefill", "decode")


@dataclass(slots=True)
class OpRow:
    """One op of one step.

    name: graph name, the key that joins rows across runs. shapes, types: the result's, then the
    sources', in numpy order. start_us counts from the profile's start. gbs: GB/s; gflops:
    GFLOP/s, or giga integer operations for quantized operands. share: of the measured peak, the
    larger of the memory and compute shares; None if no peak is known.
    """

    name: str
    op: str
    step: int
    phase: str
    segment: int
    index: int
    backend: str
    kernel: str
    shapes: list[list[int]]
    types: list[str]
    bytes: int
    flops: int
    start_us: float
    us: float
    gbs: float
    gflops: float
    share: float | None


@dataclass(slots=True)
class StepRow:
    """One step: a chunk of the prompt or one token. host_us is the part outside native code."""

    step: int
    phase: str
    n_tokens: int
    n_past: int
    start_us: float
    wall_us: float
    host_us: float


@dataclass(slots=True)
class ActivityRow:
    """How much of a sparse layer was at work, over a profile's tokens.

    layer: as in op names, `blk.3`. active: share of its neurons that fire; computed: share that
    the predictor lets through (all that fire, where the gate decides); recall: share of those that
    fire which are computed, None where none fires.
    """

    layer: str
    n_tokens: int
    active: float
    computed: float
    recall: float | None


@dataclass(slots=True)
class Header:
    """What holds for a whole profile. peaks by backend name; facts: anything else worth showing."""

    model: str = ""
    machine: str = ""
    threads: int = 0
    created: str = ""  # ISO 8601, UTC
    peaks: dict[str, Peaks] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class Recording(Protocol):
    """What every export reads: a Profile just taken, or a dump read back."""

    @property
    def header(self) -> Header: ...

    @property
    def steps(self) -> list[StepRow]: ...

    @property
    def activity(self) -> list[ActivityRow]: ...

    def rows(self, only: Container[int] | None = None) -> Iterator[OpRow]:
        """The rows of all steps, or of the steps numbered in `only`, in the order they ran; each
        step starts with its host row."""


@dataclass(slots=True)
class _Step:
    phase: str
    n_tokens: int
    n_past: int
    plan: PlanRows
    spans_ns: np.ndarray  # [n_ops, 2]
    wall_ns: int
    start_ns: int

    @property
    def begin_ns(self) -> int:
        return int(self.spans_ns[:, 0].min(initial=_LATEST))

    @property
    def native_ns(self) -> int:
        """From the start of the first op to the end of the last."""
        return int(self.spans_ns[:, 1].max()) - self.begin_ns if len(self.spans_ns) else 0

    @property
    def host_ns(self) -> int:
        # Two clocks may disagree by a tick or two; time is never negative.
        return max(0, self.wall_ns - self.native_ns)


class Profile:
    """A profile being taken. Adding a step stores its arrays; rows are made when asked for."""

    def __init__(
        self,
        model: str = "",
        threads: int = 0,
        peaks: Mapping[str, Peaks] | None = None,
        facts: Mapping[str, Any] | None = None,
        machine: str | None = None,
    ) -> None:
        self.header = Header(
            model=model,
            machine=machine_name() if machine is None else machine,
            threads=threads,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            peaks=dict(peaks or {}),
            facts=dict(facts or {}),
        )
        self.activity: list[ActivityRow] = []
        self._steps: list[_Step] = []
        self._start_ns = time.perf_counter_ns()

    def add_step(
        self,
        phase: str,
        n_tokens: int,
        plan_rows: PlanRows,
        ends_ns: np.ndarray,
        wall_ns: int,
        n_past: int = 0,
        start_ns: int | None = None,
    ) -> None:
        """Store one step.

        ends_ns: int64 [n_ops + 1], the start and then the end of every op, in nanoseconds of any
            monotonic clock; or [n_ops, 2], each op's start and end, where ops of two devices run
            at the same time. Copied, so the caller may reuse the buffer.
        wall_ns: the whole step as Python saw it. What native code did not take is the host's.
        n_past: position of the first token. start_ns: the step's start on `perf_counter_ns`;
            by default the step is taken to end now.
        Raises ValueError when the clock reads are not one more than the plan's ops.
        """
        spans = ends_ns if ends_ns.ndim == 2 else np.stack([ends_ns[:-1], ends_ns[1:]], axis=1)
        if len(spans) != len(plan_rows):
            raise ValueError(f"{len(ends_ns)} clock reads for a plan of {len(plan_rows)} ops")
        if start_ns is None:
            start_ns = time.perf_counter_ns() - wall_ns
        self._steps.append(
            _Step(phase, n_tokens, n_past, plan_rows, spans.copy(), wall_ns, start_ns)
        )

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> list[StepRow]:
        """A summary of every step."""
        return [
            StepRow(
                step=i,
                phase=s.phase,
                n_tokens=s.n_tokens,
                n_past=s.n_past,
                start_us=(s.start_ns - self._start_ns) / 1e3,
                # Ops are the finer clock: the step lasts at least as long as they do together.
                wall_us=(s.host_ns + s.native_ns) / 1e3,
                host_us=s.host_ns / 1e3,
            )
            for i, s in enumerate(self._steps)
        ]

    def rows(self, only: Container[int] | None = None) -> Iterator[OpRow]:
        """The rows of all steps, or of the steps numbered in `only`, in the order they ran, one
        device after the other where two run at the same time.

        Host time before and after the native call is not told apart: it is put before, so that
        the rows of a step follow one another without gaps and sum to its wall time (on each
        device, where there are two: waiting has rows of its own).
        """
        for i, s in enumerate(self._steps):
            if only is not None and i not in only:
                continue
            begin = s.start_ns - self._start_ns
            yield host_row(i, s.phase, begin / 1e3, s.host_ns / 1e3)
            shift = begin + s.host_ns - s.begin_ns
            for row, (start, end) in zip(s.plan, s.spans_ns.tolist(), strict=True):
                nbytes, flops = row.cost(s.n_past) if row.cost else (row.bytes, row.flops)
                yield self._op_row(row, i, s.phase, nbytes, flops, start + shift, end - start)

    def _op_row(
        self, row: PlanRow, step: int, phase: str, nbytes: int, flops: int, start: int, ns: int
    ) -> OpRow:
        # An op may be shorter than a tick of the clock; no rate can be told then.
        gbs = nbytes / ns if ns > 0 else 0.0
        gflops = flops / ns if ns > 0 else 0.0
        peaks = self.header.peaks.get(row.backend)
        return OpRow(
            name=row.name,
            op=row.op,
            step=step,
            phase=phase,
            segment=row.segment,
            index=row.index,
            backend=row.backend,
            kernel=row.kernel,
            shapes=[list(s) for s in row.shapes],
            types=list(row.types),
            bytes=nbytes,
            flops=flops,
            start_us=start / 1e3,
            us=ns / 1e3,
            gbs=gbs,
            gflops=gflops,
            share=peaks.share(gbs, gflops, row.types) if peaks else None,
        )


def host_row(step: int, phase: str, start_us: float, us: float) -> OpRow:
    """The row of a step's time outside native code."""
    return OpRow(
        name=HOST,
        op=HOST,
        step=step,
        phase=phase,
        segment=-1,
        index=-1,
        backend=HOST,
        kernel="",
        shapes=[],
        types=[],
        bytes=0,
        flops=0,
        start_us=start_us,
        us=us,
        gbs=0.0,
        gflops=0.0,
        share=None,
    )
