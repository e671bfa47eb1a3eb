"""Joins the launches of a decode step into one of decode.cu.

Every launch file still describes its op by itself. Those of one column that end up side by side
(`Launch.step` says what they are) are put together here, as far as they reach.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence

from .gemm import Gemm
from .launch import DeviceInfo, Kernel, Launch, Step, ceil_div

WARPS = 16
LEAST_STEPS = 3  # fewer are not worth a kernel of their own
LEAST_STAGES, MAX_STAGES = 2, 8
IN_FLIGHT = 64 << 10  # bytes a block asks for ahead of their arrival: enough to keep memory busy
STATIC = 1 << 10  # shared memory that the kernel declares itself, at most
STEP_BYTES, SLOTS = 512, 4
ATTENTION_WARPS, ATTENTION_ROWS = 8, 8
KINDS = ("PLAIN", "GLU", "QKV", "ATTENTION")
Ops = Sequence[Sequence[Launch | Gemm]]


def join_steps(ops: Ops, device: DeviceInfo) -> list[list[Launch | Gemm]]:
    """The launches by op, where the first op of each joined run has the launch of all of them."""
    out: list[list[Launch | Gemm]] = [list(op) for op in ops]
    at = 0
    while at < len(out):
        run = _run_from(out, at)
        while len(run) >= LEAST_STEPS:
            joined = _joined(run, device)
            if joined is not None:
                out[at : at + len(run)] = [[joined], *([] for _ in run[1:])]
                break
            run.pop()
        at += max(1, len(run))
    return out


def _run_from(ops: Ops, at: int) -> list[Step]:
    """Steps from `at` on that can be one kernel, as far as their types show."""
    run: list[Step] = []
    for op in ops[at:]:
        step = op[0].step if len(op) == 1 and isinstance(op[0], Launch) else None
        if step is None or not _together([*run, step]):
            break
        run.append(step)
    # A type that one product alone has (the head's, mostly) would make every stage larger.
    uses = _weight_uses(run)
    while len(uses) > 1 and run and any(uses[t] == 1 for t in run[-1].weights):
        run.pop()
        uses = _weight_uses(run)
    return run


def _weight_uses(run: Sequence[Step]) -> Counter[str]:
    return Counter(t for s in run for t in set(s.weights))


def _together(run: Sequence[Step]) -> bool:
    """At most two types of weights, read against columns of one form; one cache, one rotation."""
    forms = {s.quantized for s in run if s.weights}
    caches = {s.cache for s in run if s.cache}
    rotations = {s.rotation for s in run if s.rotation}
    return len(_weight_uses(run)) <= 2 and max(len(forms), len(caches), len(rotations)) <= 1


def _joined(run: Sequence[Step], device: DeviceInfo) -> Launch | None:
    """One launch for all of them; None if its shared memory has no room for two stages."""
    types = list(dict.fromkeys(t for s in run for t in s.weights))
    if not types:
        return None
    first, second = types[0], types[-1]
    stage = max(s.stage_bytes for s in run)
    cache = next((s.cache for s in run if s.cache), ("f16", "f16", 64))
    rotation = next((s.rotation for s in run if s.rotation), b"")
    head_dim = struct.unpack_from("@i", rotation, len(rotation) - 4)[0] if rotation else 0
    sums = 4 * ATTENTION_WARPS * ATTENTION_ROWS * (cache[2] + 2)
    work = max(sums, *(s.column_bytes for s in run))
    for stages in range(MAX_STAGES, LEAST_STAGES - 1, -1):
        work_at = _aligned(SLOTS * STEP_BYTES + WARPS * stages * 8 + head_dim // 2 * 8)
        ring_at = _aligned(work_at + work)
        shared = ring_at + WARPS * stages * stage
        if shared + STATIC <= device.shared_per_block:
            break
    else:
        return None
    entry = f"decode<{first}, {second}, {cache[0]}, {cache[1]}, {cache[2]}>"
    body = rotation[:-4] if rotation else bytes(56)
    in_flight = max(1, min(stages, round(IN_FLIGHT / (WARPS * stage))))
    numbers = struct.pack("@6i", len(run), head_dim, stages, in_flight, work_at, ring_at)
    args = bytes(16) + body + numbers
    data = b"".join(_step_bytes(s, second if second != first else None) for s in run)
    return Launch(
        Kernel("decode.cu", entry), (device.sm_count, 1, 1), (32 * WARPS, 1, 1),
        args + bytes(-len(args) % 16), shared, dependent=True, data=data, steps=len(run),
    )  # fmt: skip


def _step_bytes(s: Step, second: str | None) -> bytes:
    """`Step` of decode.cu."""
    bits = sum(1 << i for i, t in enumerate(s.weights) if t == second)
    numbers = struct.pack("@4i", KINDS.index(s.kind), bits, s.total, 0)
    return s.args.ljust(STEP_BYTES - len(numbers), b"\0") + numbers


def _aligned(n: int) -> int:
    return ceil_div(n, 128) * 128
