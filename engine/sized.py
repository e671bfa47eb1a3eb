"""What a model takes of its devices' memory, before it is loaded and after."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import Plan, summary
from gguflow.engine.described import Described
from gguflow.engine.graph import Role
from gguflow.engine.load import WeightStore
from gguflow.engine.load.compact import Room, lines, rooms, wanted
from gguflow.engine.load.offload import device_lines, needed_by_device
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.planning import Planner, cache_size, repacked_bytes, token_key
from gguflow.engine.serving.buckets import Buckets
from gguflow.engine.serving.speculation import Speculation, rows_to_check
from gguflow.models.batch import CacheSize

SEVERAL = (2, 16, 128)  # single rows that stand for others


class Sized(Described):
    """Plans of what was resolved, and their bytes. weights, backends, speculation: the model's."""

    _planner: Planner
    backends: Mapping[str, Backend]
    weights: WeightStore
    speculation: Speculation | None

    def plan(self, key: PlanKey) -> Plan:
        """Compile a graph; needs no weights in memory. Raises PlacementError."""
        return self._planner.plan(self.setup, key)

    def largest_plans(self) -> list[Plan]:
        """What a generation runs: a full piece of a prompt, then single tokens."""
        return self._planner.largest(self.setup)

    def memory_needed(self) -> dict[str, int]:
        """Bytes of devices, by memory space, beside what the driver and other programs have."""
        n = 0 if (s := self.speculation) is None else rows_to_check(self.options.n_seqs, s.most)
        plans = partial(self._planner.largest, self.setup, n)
        found = needed_by_device(plans, self.backends.values())
        return {space: b.total for space, b in found.items()}

    def repacked_bytes(self) -> dict[str, int]:
        """By memory space, the bytes of weights that loading copies into a backend's own layout."""
        return repacked_bytes(self.plan(token_key()), self.backends)

    def beside_weights(self) -> dict[str, int]:
        """Bytes of devices, by memory space, that a session takes beside the weights."""
        found = needed_by_device(self.largest_plans, self.backends.values())
        return {space: b.total - b.weights for space, b in found.items()}

    def compact_rooms(self, n_rows: int = 0, others: Mapping[str, int] | None = None) -> list[Room]:
        """Where weights are to be in their compact form too, by `Options.compact_weights`; asked
        before they are loaded. n_rows: of single rows in a run, at most; as many as sequences, if
        there are not more. others: see `rooms`."""
        if self.options.vram_budget or self.options.compact_weights == "off":
            return []  # the former counts every byte
        n_seqs = self.options.n_seqs
        most = max(n_rows, n_seqs)

        def several(n: int) -> PlanKey:
            return self.buckets.key(n, 0, min(n, n_seqs), n, False, True)

        def plans() -> list[Plan]:
            single = self.plan(token_key())
            if most == 1 or not self._read_by_several(single):
                return [single]
            # Products of a few rows, of more and of many may read other weights so.
            sizes = dict.fromkeys(min(most, n) for n in SEVERAL)
            return [single, *map(self.plan, map(several, sizes))]

        found = rooms(plans, self.largest_plans, self.backends, others or {})
        return wanted(found, self.options.compact_weights)

    def _read_by_several(self, plan: Plan) -> bool:
        """Whether products of several rows may read weights of a plan in another form."""
        forms = [b.compactor for b in self.backends.values() if b.compactor is not None]
        types = {t.dtype for t in plan.leaves(Role.WEIGHT)}
        return any(form.several_rows(t) for form in forms for t in types)

    def compact_bytes(self) -> dict[str, int]:
        """By memory space, the bytes of weights that a device has in their compact form beside
        themselves, or that loading would make."""
        if self.weights.buffers:
            return self.weights.compact_bytes
        return {r.device.space: r.total for r in self.compact_rooms()}

    def cache_size(self) -> CacheSize:
        """Pages of the KV cache by group of layers."""
        return cache_size(self.setup)

    @property
    def buckets(self) -> Buckets:
        """The sizes that plans are compiled for."""
        return self._planner.buckets(self.setup)

    def forecast(self) -> list[str]:
        """Lines that say, before loading, what runs where and the bytes each device will need."""
        told = summary(self.plan(self.buckets.largest), self.repacked_bytes())
        of_devices = device_lines(self.backends.values(), self.memory_needed())
        return [*told, *of_devices, *lines(self.compact_bytes()), *self.notes]
