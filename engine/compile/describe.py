"""The plan in words: what `gguflow inspect --plan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .plan import Plan


def human_bytes(n: int) -> str:
    """`1.50 MiB` and the like; exact below one KiB."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{n} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError


def summary(plan: Plan, repacked: Mapping[str, int] | None = None) -> list[str]:
    """A few lines: ops, segments, fusions, fallbacks, memory. repacked: bytes by memory space."""
    lines = [
        f"{len(plan.nodes)} ops in {len(plan.segments)} segment(s), "
        f"{plan.flops() / 1e9:.3f} GFLOP a run"
    ]
    if plan.fused:
        lines.append("fused: " + ", ".join(f"{k} {op}" for op, k in sorted(plan.fused.items())))
    for space, b in plan.bytes_by_space().items():
        arena = plan.arenas[space]
        saved = 100 * (1 - arena.nbytes / arena.naive_nbytes) if arena.naive_nbytes else 0.0
        lines.append(
            f"{space}: weights {human_bytes(b.weights)} ({b.weights} B), "
            f"KV cache and state {human_bytes(b.states)} ({b.states} B), "
            f"inputs {b.inputs} B, results {b.results} B, copies {b.copies} B, "
            f"exchange {b.exchange} B, "
            f"scratch {human_bytes(b.scratch)} ({b.scratch} B), "
            f"total {human_bytes(b.total)} ({b.total} B)"
        )
        lines.append(
            f"{space}: arena {human_bytes(arena.nbytes)} ({arena.nbytes} B) with reuse, "
            f"{human_bytes(arena.naive_nbytes)} without ({saved:.0f} % saved)"
        )
        if repacked and repacked.get(space):
            lines.append(
                f"{space}: {human_bytes(repacked[space])} of the weights are repacked for the "
                "kernels (copied once at load, the file's pages are released)"
            )
    return lines + fallbacks(plan)


def fallbacks(plan: Plan) -> list[str]:
    """A line for each op that does not run where it was wanted."""
    fell = Counter((n.op, wanted, got) for n, wanted, got in plan.placement.fallbacks)
    return [
        f"fallback: {k} x {op} run on {got}, not on {wanted}, which has no kernel for it"
        for (op, wanted, got), k in sorted(fell.items(), key=str)
    ]


def listing(plan: Plan) -> list[str]:
    """Every op in order: index, backend, op, name, result, operands, arena offset."""
    lines = []
    index = 0
    for s, segment in enumerate(plan.segments):
        lines.append(f"segment {s}: {segment.backend}, {len(segment.nodes)} ops")
        for c in segment.copies:
            lines.append(f"  copy {c.owner.name} ({c.owner.nbytes} B) {c.source} -> {c.target}")
        for n in segment.nodes:
            offset = plan.arenas[plan.spaces[segment.backend]].offsets.get(n)
            where = f"@{offset}" if offset is not None else f"in {n.owner.name}"
            operands = ", ".join(
                "-" if x is None else f"{x.name}:{x.dtype.name}{list(x.shape)}" for x in n.srcs
            )
            lines.append(
                f"  {index:4d} {n.op:<16} {n.name:<28} {n.dtype.name}{list(n.shape)} "
                f"{where}  <- {operands}"
            )
            index += 1
    return lines
