"""Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.

Source: "Trace Event Format", the Chromium project. Complete events ("ph": "X") with times in
microseconds; a process a backend, with one track for its segments and one for its ops; a process
for the host with one track for steps and one for the time outside native code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TextIO

from .record import HOST, OpRow, Recording

HOST_PID = 1
_HOST_TRACKS = {1: "steps", 2: "host"}
_BACKEND_TRACKS = {1: "segments", 2: "ops"}


def write_chrome(recording: Recording, out: TextIO) -> None:
    """Write the whole trace as one JSON object, an event a line."""
    dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
    out.write('{"displayTimeUnit":"ms","otherData":')
    out.write(dump(asdict(recording.header)))
    out.write(',"traceEvents":[\n')
    for i, event in enumerate(_events(recording)):
        out.write((",\n" if i else "") + dump(event))
    out.write("\n]}\n")


def _events(recording: Recording) -> Iterator[dict[str, Any]]:
    title = " ".join(filter(None, ("gguflow", recording.header.model)))
    yield from _metadata(HOST_PID, title, _HOST_TRACKS)
    for s in recording.steps:
        about = {"n_tokens": s.n_tokens, "n_past": s.n_past, "host_us": round(s.host_us, 3)}
        name = f"{s.phase} {s.step}"
        yield _complete(name, s.phase, HOST_PID, 1, s.start_us, s.wall_us, about)
    pids: dict[str, int] = {HOST: HOST_PID}
    segment: list[OpRow] = []  # the ops so far of the segment now running
    for row in recording.rows():
        if segment and _segment(segment[0]) != _segment(row):
            yield _segment_event(segment, pids)
            segment = []
        if row.backend not in pids:
            pids[row.backend] = len(pids) + 1
            yield from _metadata(pids[row.backend], row.backend, _BACKEND_TRACKS)
        pid = pids[row.backend]
        if row.op == HOST:
            yield _complete("host", row.phase, pid, 2, row.start_us, row.us, {})
            continue
        segment.append(row)
        args: dict[str, Any] = {
            "op": row.op,
            "kernel": row.kernel,
            "step": row.step,
            "shapes": " <- ".join(
                _operand(s, t) for s, t in zip(row.shapes, row.types, strict=True)
            ),
            "bytes": row.bytes,
            "flops": row.flops,
            "GB/s": round(row.gbs, 3),
            "GFLOP/s": round(row.gflops, 3),
        }
        if row.share is not None:
            args["share of peak"] = round(row.share, 4)
        yield _complete(row.name, row.op, pid, 2, row.start_us, row.us, args)
    if segment:
        yield _segment_event(segment, pids)


def _segment(row: OpRow) -> tuple[int, int, str]:
    return row.step, row.segment, row.backend


def _segment_event(ops: list[OpRow], pids: dict[str, int]) -> dict[str, Any]:
    first, last = ops[0], ops[-1]
    us = last.start_us + last.us - first.start_us
    args = {"step": first.step, "ops": len(ops)}
    name = f"segment {first.segment}"
    return _complete(name, first.phase, pids[first.backend], 1, first.start_us, us, args)


def _operand(shape: list[int], type_name: str) -> str:
    return f"{type_name}[{', '.join(map(str, shape))}]"


def _complete(
    name: str, category: str, pid: int, tid: int, ts: float, dur: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": round(ts, 3),
        "dur": round(dur, 3),
        "args": args,
    }


def _metadata(pid: int, name: str, tracks: dict[int, str]) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}
    for tid, track in tracks.items():
        yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": track}}
        sort = {"sort_index": tid}
        yield {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": tid, "args": sort}
