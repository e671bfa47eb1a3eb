"""The process that holds a stage: a model of which it loads its own layers, and runs its part."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from gguflow.engine.backends.base import Backend, DeviceId, Live, find_backend
from gguflow.engine.devices import Devices
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.limits import AUTO_LAYERS
from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.runtime import BoundPlan, host_array
from gguflow.engine.runtime.exchange import SideBySide
from gguflow.engine.runtime.places import Place
from gguflow.engine.runtime.turns import Turns
from gguflow.engine.serving.runner import Runner

from .calls import Calls, Values
from .crossing import Crossing
from .errors import ClusterError
from .part import KIND, Part, PlanId, common, part_at, side_of, stage_devices
from .stage import StageBackend

BOUND = 64  # plans that are kept ready


def own_device(options: Options) -> str:
    """What a process computes its stage with."""
    if options.devices:
        return options.devices[0]
    return "cuda:0" if options.n_gpu_layers else "cpu"


def stage_model(
    source: ModelSource, options: Options, index: int, calls: dict[int, Calls], n: int,
    shares: tuple[float, ...] = (),
) -> Model:  # fmt: skip
    """The model as the process has it that holds stage `index` of n, on its GPU if the options ask
    for one, or on the processor. calls: of the stages that it runs; the others it only knows of.
    shares: of the layers, in proportion; none for equal ones."""
    asked = options.n_gpu_layers
    if asked == AUTO_LAYERS or 0 < asked <= source.arch.hp.n_layer:
        raise OptionError("`n_gpu_layers`: a stage has all of its layers on a GPU, or none")
    own = own_device(options)
    options = options.with_fields(
        {
            "devices": stage_devices(index, n, own), "split_mode": "layer", "n_gpu_layers": 0,
            "tensor_split": shares,
        }
    )  # fmt: skip
    kind = DeviceId.parse(own)
    given = options.of_backends()
    found: list[Backend] = []

    def find(name: str, i: int) -> Backend:
        if name != KIND:
            return find_backend(name, given | {"device": i})
        if not found:  # which kernels there are is the same on every device of a kind
            found.append(find_backend(own, given | {"device": kind.index}))
        return StageBackend(i, found[0], calls.get(i))

    return Model(source, options, Devices(find, options.device))


class Holder:
    """A stage, asked for by what `Calls` lists; one call at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        # Every stage knows of the others, as devices like its own.
        self._others = [b for b in model.backends.values() if isinstance(b, StageBackend)]
        self._staging = self._others[0].staging
        self._sides: dict[tuple[int, PlanId], tuple[BoundPlan, Part]] = {}
        self._runners: dict[tuple[int, tuple[Any, ...]], Runner] = {}
        self._ready: OrderedDict[tuple[int, PlanId], tuple[BoundPlan, Part]] = OrderedDict()

    def open(self, cache: int, plan: PlanId, fingerprint: str) -> tuple[str, ...]:
        """See `Calls`."""
        bound, part = self._bound(cache, plan)
        if part.fingerprint != fingerprint:
            raise ClusterError(
                f"a stage makes another plan of {self._model.source.path} than the one that runs "
                "it: their versions or devices differ"
            )
        return tuple(r.kernel for r in bound.rows if r.segment == plan.segment)

    def run(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> tuple[Values, np.ndarray | None]:
        """See `Calls`."""
        bound, part = self._bound(cache, plan)
        rooms = self._staging.rooms([t.stored_bytes for t in part.takes])
        for t, room in zip(part.takes, rooms, strict=True):
            _put(_place_of(bound, part, t), values[t.name], room)
        for c in bound.brought:
            c.run()
        turns = bound.runner
        assert isinstance(turns, Turns)
        ticks = turns.run_part(plan.segment, live, timed, brought=True)
        found = {}
        for t in part.gives:
            x = host_array(bound.memory, t)
            rows = bound.memory.rows.get(t)
            known = rows is not None and live is not None and rows in live
            found[t.name] = x[: live[rows]] if known else x  # type: ignore[index]
        return found, None if ticks is None else ticks.ns

    def meets(self, name: Crossing) -> str | None:
        """See `Calls`."""
        return self._others[0].opens(name)

    def begin(
        self, cache: int, plan: PlanId, live: Live | None, values: Values, timed: bool
    ) -> None:
        """See `Calls`."""
        bound, part = self._bound(cache, plan)
        for t in part.takes:
            _put(bound.memory.locate(t), values[t.name], None)
        bound.begin(live, timed)

    def end(self, cache: int, plan: PlanId) -> tuple[Values, np.ndarray | None]:
        """See `Calls`."""
        bound, part = self._bound(cache, plan)
        bound.end()
        assert isinstance(bound.runner, SideBySide)
        ticks = bound.runner.ticks(part.backend)
        found = {t.name: host_array(bound.memory, t) for t in part.gives}
        return found, None if ticks is None else ticks.ns

    def close(self, cache: int, plan: PlanId) -> None:
        """See `Calls`."""
        self._sides.pop((cache, plan), None)

    def fetch(self, cache: int, plan: PlanId, name: str, at: int, nbytes: int) -> np.ndarray:
        """See `Calls`."""
        bound, part = self._bound(cache, plan)
        t = next(t for t in part.keeps if t.name == name)
        buffer, offset = bound.memory.locate(t)
        return np.array(buffer.read(offset + at, nbytes))

    def read(self, cache: int, name: str, at: int, nbytes: int) -> np.ndarray:
        """See `Calls`."""
        return np.array(self._runners[cache, ()].states[name].read(at, nbytes))

    def write(self, cache: int, name: str, at: int, data: np.ndarray) -> None:
        """See `Calls`."""
        self._runners[cache, ()].states[name].write(at, data)

    def drop(self, cache: int) -> None:
        """See `Calls`."""
        for key in [k for k in self._runners if k[0] == cache]:
            del self._runners[key]
        for ready in [k for k in self._ready if k[0] == cache]:
            del self._ready[ready]
        for side in [k for k in self._sides if k[0] == cache]:
            del self._sides[side]

    def _bound(self, cache: int, plan: PlanId) -> tuple[BoundPlan, Part]:
        at = cache, plan
        if plan.side is not None:
            if at not in self._sides:
                self._sides[at] = self._side(cache, plan, plan.side[1])
            return self._sides[at]
        if at not in self._ready:
            bound = self._runner(cache, plan).plan(plan.key)
            if plan.segment >= len(bound.plan.segments):
                raise ClusterError("a stage makes another plan than the one that runs it")
            self._ready[at] = bound, part_at(bound.plan, plan.segment)
            while len(self._ready) > BOUND:
                self._ready.popitem(last=False)
        self._ready.move_to_end(at)
        return self._ready[at]

    def _side(self, cache: int, plan: PlanId, crossing: Crossing) -> tuple[BoundPlan, Part]:
        for other in self._others:
            other.crossing = crossing
        try:
            bound = self._runner(cache, plan).lowered(plan.key)
        finally:
            for other in self._others:
                other.crossing = None
        if not isinstance(bound.runner, SideBySide):
            raise ClusterError("a stage makes another plan than the one that runs it")
        return bound, side_of(bound.plan, plan.segment, plan.side)

    def _runner(self, cache: int, plan: PlanId) -> Runner:
        """The plans over a set of states, of a form of the model."""
        key = cache, plan.rewrites
        if key not in self._runners:
            model = self._model
            changes = {k: v for k, v in plan.options if dict(common(model.options))[k] != v}
            if changes:
                model = model.with_options(**changes)  # type: ignore[arg-type]
            if (cache, ()) not in self._runners:
                self._runners[cache, ()] = Runner(model)
            if plan.rewrites:
                for change in plan.rewrites:
                    model = model.with_rewrite(change)
                self._runners[key] = self._runners[cache, ()].over(model)
        return self._runners[key]


def _place_of(bound: BoundPlan, part: Part, t: Tensor) -> Place:
    """Where this process looks for what it takes of other stages. Inputs are where whoever runs the
    plan writes them."""
    if t.role is Role.INPUT:
        return bound.memory.locate(t)
    return bound.memory.copies[t, bound.plan.spaces[part.backend]]


def _put(place: Place, data: np.ndarray, room: np.ndarray | None) -> None:
    """room: of that size, which the device's driver copies from."""
    buffer, offset = place
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if (host := buffer.host()) is not None:
        host[offset : offset + raw.nbytes] = raw
        return
    if room is not None:
        room[: raw.nbytes] = raw
        raw = room[: raw.nbytes]
    buffer.write(offset, raw)
