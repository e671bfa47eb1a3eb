"""The engine's own plans of a model over devices that are not there, as work and as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.backends.base import Backend, find_backend
from gguflow.engine.compile import Plan
from gguflow.engine.devices import Devices
from gguflow.engine.graph import Role
from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PlanKey, step_key

from .work import RunWork, layer_of, run_work

_KIND = "null"
_NO_BOUND = 1 << 60  # bytes of a device: what does not fit is a row of the forecast, not an error


class Plans:
    """Of one model with every layer split over so many devices of a host."""

    def __init__(self, source: ModelSource, n_devices: int, n_ctx: int, n_seqs: int) -> None:
        """n_ctx: tokens of a sequence. n_seqs: most sequences at once. Raises OptionError for a
        split that the engine refuses."""
        self.names = [f"{_KIND}:{k}" for k in range(n_devices)]
        self.n_seqs, self.n_layer = n_seqs, source.arch.hp.n_layer
        self._row = 4 * source.arch.hp.n_embd  # bytes of a token between two layers
        options = Options(
            n_ctx=n_ctx, n_seqs=n_seqs, n_ubatch=min(n_ctx, 512), sparse="off",
            backends=tuple(self.names[:1]), devices=tuple(self.names),
            split_mode="tensor" if n_devices > 1 else "none",
        )  # fmt: skip
        self._model = Model(source, options, Devices(_device))
        self._runs: dict[tuple[PlanKey, int], RunWork] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the engine says of the split: what could not be cut, by name."""
        return self._model.resolved.notes

    def decode(self, n_seqs: int, n_past: int) -> RunWork:
        """A token for each of n_seqs sequences of n_past tokens."""
        key = PlanKey(n_seqs, 0, n_seqs, n_seqs, True)
        return self._run(key, n_past - n_seqs + 1)  # a cost counts a run's rows as one sequence's

    def piece(self, n_tokens: int, n_past: int, is_last: bool) -> RunWork:
        """n_tokens of one sequence's prompt after n_past; only the last piece has an output."""
        return self._run(step_key(n_tokens, "last" if is_last else "none", False), n_past)

    def _run(self, key: PlanKey, n_past: int) -> RunWork:
        at = key, n_past
        if at not in self._runs:
            plan = self._model.plan(key)
            self._runs[at] = run_work(
                plan, self.names, self.n_layer, n_past, self._row * key.n_tokens
            )
        return self._runs[at]

    def bytes_needed(self, bounds: Sequence[int], n_seqs: int) -> int:
        """Bytes of the fullest device where every host has the layers between two of the bounds
        (of n_layer + 1, the output head being one more) and n_seqs sequences."""
        plan = self._model.plan(PlanKey(n_seqs, 0, n_seqs, n_seqs, True))
        most = 0
        for start, end in zip(bounds, bounds[1:], strict=False):
            for name in self.names:
                most = max(most, self._held(plan, name, start, end, n_seqs))
        return most + max(b.working for b in plan.bytes_by_space().values())

    def _held(self, plan: Plan, name: str, start: int, end: int, n_seqs: int) -> int:
        held = 0
        for t in (*plan.leaves(Role.WEIGHT), *plan.leaves(Role.STATE)):
            # Caches are named `kv.3.k`, by their layer like everything else.
            layer = min(max(layer_of(t), 0), self.n_layer)
            if plan.placement.of[t] == name and start <= layer < end:
                is_state = t.role is Role.STATE
                held += t.nbytes * n_seqs // self.n_seqs if is_state else t.stored_bytes
        return held


def _device(kind: str, index: int) -> Backend:
    return find_backend(kind, {"device": index, "memory": _NO_BOUND})
