"""The plan and the memory of a model, for `gguflow inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gguflow.engine.plan_key import step_key

from .columns import columns

if TYPE_CHECKING:
    from gguflow.engine.compile import Plan
    from gguflow.engine.model import Model


def plan_text(plan: Plan, n_tokens: int, model: Model) -> str:
    """Summary, expected times where a device knows them without running, and op listing."""
    from gguflow.engine.compile import listing, summary

    head = f"plan for {n_tokens} token{'s' * (n_tokens != 1)} a run"
    times = [
        f"{name}: {1e3 * s:.3f} ms a run expected" for name, s in expected(plan, model).items()
    ]
    return "\n".join([head, *summary(plan, model.repacked_bytes()), *times, "", *listing(plan)])


def expected(plan: Plan, model: Model) -> dict[str, float]:
    """Seconds of a run, by backend, of those that cost without running."""
    return {
        name: sum(b.costs(n) for n in plan.nodes if plan.placement.of[n] == name)
        for name, b in model.backends.items()
        if b.costs is not None
    }


def plan_json(plan: Plan, model: Model) -> dict[str, Any]:
    """Segments with their ops and copies, fusions, fallbacks, bytes by memory space, expected
    seconds by backend."""
    segments = []
    for s in plan.segments:
        offsets = plan.arenas[plan.spaces[s.backend]].offsets
        segments.append(
            {
                "backend": s.backend,
                "copies": [
                    {
                        "name": c.owner.name,
                        "bytes": c.owner.nbytes,
                        "from": c.source,
                        "to": c.target,
                    }
                    for c in s.copies
                ],
                "ops": [
                    {
                        "name": n.name,
                        "op": n.op,
                        "type": n.dtype.name,
                        "shape": list(n.shape),
                        "operands": [None if x is None else x.name for x in n.srcs],
                        "offset": offsets.get(n),
                    }
                    for n in s.nodes
                ],
            }
        )
    return {
        "segments": segments,
        "fused": dict(plan.fused),
        "fallbacks": [
            {"name": n.name, "op": n.op, "wanted": wanted, "got": got}
            for n, wanted, got in plan.placement.fallbacks
        ],
        "flops": plan.flops(),
        "expected_s": expected(plan, model),
        "spaces": _spaces(plan),
    }


def _spaces(plan: Plan) -> dict[str, dict[str, int]]:
    return {
        space: {
            "weights": b.weights,
            "states": b.states,
            "inputs": b.inputs,
            "results": b.results,
            "copies": b.copies,
            "exchange": b.exchange,
            "arena": b.arena,
            "scratch": b.scratch,
            "total": b.total,
            "arena_without_reuse": plan.arenas[space].naive_nbytes,
        }
        for space, b in plan.bytes_by_space().items()
    }


def memory_json(model: Model) -> dict[str, Any]:
    """Exact bytes by memory space for the largest run: a ubatch that ends with a sampled token."""
    o = model.options
    repacked = model.repacked_bytes()
    spaces = _spaces(model.plan(step_key(o.n_ubatch, "last", True)))
    for space, b in spaces.items():
        b["repacked"] = repacked.get(space, 0)
    return {
        "n_ctx": o.n_ctx,
        "n_ubatch": o.n_ubatch,
        "type_k": o.k_type.name,
        "type_v": o.v_type.name,
        "file": model.source.n_bytes,
        "spaces": spaces,
    }


_WORDS = {
    "weights": "weights, as in the file",
    "repacked": "  of them copied into the kernels' layout",
    "states": "KV cache",
    "inputs": "inputs",
    "results": "outputs",
    "copies": "copies from other devices",
    "scratch": "scratch of the kernels",
    "arena": "arena for intermediate values",
    "arena_without_reuse": "  what it would take without reuse",
    "total": "total",
}


def memory_text(model: Model) -> str:
    """A table of bytes by memory space, then what else there is to know."""
    from gguflow.engine.compile import human_bytes

    m = memory_json(model)
    rows = [
        (space, words, b[key], human_bytes(b[key]))
        for space, b in m["spaces"].items()
        for key, words in _WORDS.items()
    ]
    head = (
        f"memory at context {m['n_ctx']}, {m['n_ubatch']} tokens a run, "
        f"KV cache of {m['type_k']} and {m['type_v']}"
    )
    table = columns([("device", "what", "bytes", ""), *rows], right=(2, 3))
    return "\n".join([head, table, *model.notes])
