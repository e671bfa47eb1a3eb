"""Which experts a device keeps: the most used ones of all layers, as many as its memory holds."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import human_bytes, padded_bytes, round_up
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.load.offload import RESERVE, Overrides, needed
from gguflow.engine.planning import Planner, Setup, record, token_key

from .run import HotExperts, expert_layers, expert_weights, with_hot_experts
from .use import Counts

HOST = "cpu"
TRIES = 6  # at a budget whose plan turns out larger than forecast


def host_rules(n_layer: int, cpu_experts: int) -> Overrides:
    """Rules that keep the experts of the first layers, or of all, on the host."""
    layers = r"\d+"
    if cpu_experts >= 0:
        layers = "|".join(str(i) for i in range(min(cpu_experts, n_layer)))
    return ((rf"^blk\.(?:{layers})\.ffn_\w+_exps\.(?!hot)\w+$", HOST),) if layers else ()


def all_hidden(names: Iterable[str], rules: Overrides, own: Overrides) -> str:
    """One of `rules`, where these leave nothing for `own` that come after them; else empty."""
    asked = [n for n in names if any(re.search(pattern, n) for pattern, _ in own)]
    before = [next((f"{p}={to}" for p, to in rules if re.search(p, n)), "") for n in asked]
    return before[0] if before and all(before) else ""


def with_their_nodes(setup: Setup, rules: Overrides) -> Overrides:
    """`rules`, and more that let what is computed with a layer's experts run where these put their
    weights: rules that come later, of whole layers, name nodes too."""
    found = list[tuple[str, str]]()
    for layer in expert_layers(record(setup, token_key())):
        weight = layer.weights[0].name
        target = next((to for pattern, to in rules if re.search(pattern, weight)), None)
        if target is not None:
            names = "|".join(re.escape(n.name) for n in layer.nodes)
            found.append((rf"^(?:{names})$", target))
    return (*rules, *found)


@dataclass(frozen=True, eq=False)
class Room:
    """A model whose experts are all on the host, and the device that the rest is on."""

    setup: Setup
    planner: Planner
    device: Backend

    def free(self) -> int:
        """Bytes of the device that are to have."""
        assert self.device.memory is not None
        return self.device.memory.room()[0] - RESERVE

    def taken(self, setup: Setup) -> int:
        """What plans of a setup take there."""
        return needed(self.planner.largest(setup), self.device).total

    def layers(self) -> list[int]:
        """Those whose routing is computed on the device."""
        plan = self.planner.plan(self.setup, token_key())
        found = [
            int(n.name.split(".")[1])
            for n in plan.nodes
            if n.op == "route" and plan.placement.of[n] == self.device.name
        ]
        return sorted(set(found))

    def expert_bytes(self, layer: int) -> int:
        """Of one expert of a layer, on the device."""
        assert self.device.memory is not None
        unit = self.device.memory.row_unit
        weights = expert_weights(self.setup.source, layer)
        return sum(padded_bytes(w.dtype, w.shape, unit) // w.shape[0] for w in weights)

    def with_hot(self, hot: dict[int, np.ndarray]) -> Setup:
        """The model with these experts on the device."""
        setup = self.setup
        if not hot:
            return setup
        rest = tuple(r for r in setup.rewrites if not isinstance(r, HotExperts))
        source = with_hot_experts(setup.source, hot)
        layers = "|".join(map(str, hot))
        # Before the rules of whole layers. Which ids are cold is looked up on the device.
        cold = (rf"^blk\.(?:{layers})\.ffn\.cold_(?!ids$)\w+$", HOST)
        options = replace(setup.options, overrides=(cold, *setup.options.overrides))
        # Before all others: they see the layers as they are run.
        rewrites = HotExperts(hot), *rest
        return replace(setup, source=source, options=options, rewrites=rewrites)


def hottest(counts: Counts, cost: dict[int, int], budget: int) -> dict[int, np.ndarray]:
    """The experts with the most uses a byte within a budget, by layer; of layers that have any.

    cost: bytes of an expert, by layer; only these layers take part. Ties go to the earlier layer
    and the lower id.
    """
    every = [
        (-float(n) / cost[i], i, e) for i in sorted(cost) for e, n in enumerate(counts[i]) if n > 0
    ]
    chosen: dict[int, list[int]] = {}
    for _, i, e in sorted(every):
        if cost[i] <= budget:
            budget -= cost[i]
            chosen.setdefault(i, []).append(e)
    return {i: np.array(sorted(ids), np.int32) for i, ids in chosen.items()}


def place_hottest(room: Room, counts: Counts) -> tuple[Setup, str]:
    """The model with as many of the most used experts on the device as fit; what that came to, in
    words. The rest of the model fits: layers were placed before."""
    base, free = room.taken(room.setup), room.free()
    assert room.device.memory is not None
    unit = room.device.memory.unit
    cost = {i: round_up(room.expert_bytes(i), unit) for i in room.layers() if i in counts}
    left, placed, hot = free - base, room.setup, dict[int, np.ndarray]()
    for _ in range(TRIES):
        hot = hottest(counts, cost, left)
        placed = room.with_hot(hot)
        over = room.taken(placed) - free
        if not hot or over <= 0:
            break
        left -= over + max(cost.values())
    else:
        hot, placed = {}, room.setup
    n_hot, n_all = sum(map(len, hot.values())), sum(len(c) for c in counts.values())
    used = sum(int(counts[i][ids].sum()) for i, ids in hot.items())
    all_used = max(1, sum(int(c.sum()) for c in counts.values()))
    share, taken = 100 * used / all_used, human_bytes(room.taken(placed))
    return placed, (
        f"{room.device.space}: {n_hot} of {n_all} experts, {share:.0f} % of what tokens choose; "
        f"{taken} of {human_bytes(free)}"
    )
