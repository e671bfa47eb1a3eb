"""Weights on their backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.backends.base import Backend, Buffer
from gguflow.engine.backends.forms import Packer
from gguflow.engine.compile import Plan
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.graph import Role, Tensor
from gguflow.engine.locked import lock

from .kept import LEAST, Item, Keeper
from .source import FileBytes, RepeatedRows, WeightSource

if TYPE_CHECKING:
    from .compact import Room

Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what


class WeightStore:
    """Weights on their backends, shared by every plan of a model."""

    def __init__(self) -> None:
        self.buffers: dict[str, Any] = {}
        self.packed: set[str] = set()
        self.repacked_bytes: dict[str, int] = {}  # by memory space
        self.compact_bytes: dict[str, int] = {}  # the same
        self.notes: tuple[str, ...] = ()  # what the user should know of loading them
        self.checks: list[Callable[[], None]] = []  # of files that kernels read as they are mapped

    def fork(self) -> WeightStore:
        """A store with the same weights, to which others can be added."""
        other = WeightStore()
        other.buffers = dict(self.buffers)
        other.packed, other.repacked_bytes = set(self.packed), dict(self.repacked_bytes)
        other.compact_bytes = dict(self.compact_bytes)
        other.checks = list(self.checks)
        return other

    def load(
        self,
        sources: Mapping[str, WeightSource],
        leaves: Iterable[Tensor],
        users: Mapping[Tensor, list[Tensor]],
        backend_of: Callable[[Tensor], Backend],
        progress: Progress | None = None,
        keeper: Keeper | None = None,
        check: Callable[[], None] = lambda: None,
        mlock: bool = False,
    ) -> None:
        """Bring the weights `leaves` to their backends, repacked where the backend wants it; those
        held in the form wanted stay, and those of another process there. keeper: finds repacked
        ones of an earlier start, and keeps them for the next. check: raises GgufError for files
        that changed. mlock: those of the host stay in memory."""
        todo = []
        for t in leaves:
            if not backend_of(t).holds:
                continue
            packed_bytes = backend_of(t).packed_bytes(t, users.get(t, []))
            held = t.name in self.buffers and (t.name in self.packed) == (packed_bytes > 0)
            if not held:
                todo.append((t, packed_bytes))
        with ExitStack() as stack:
            kept, rooms = _kept(todo, sources, backend_of, keeper, stack) if keeper else ({}, {})
            told = _Told(progress, sum(t.nbytes for t, _ in todo))

            def bring(mine: Sequence[tuple[Tensor, int]]) -> None:
                for t, packed_bytes in mine:
                    if told.is_over:
                        return
                    told.begin(t)
                    self._bring(t, packed_bytes, sources[t.name], backend_of(t), kept, rooms)
                    told.end(t)

            try:
                _by_device(bring, todo, backend_of)
            finally:  # where one failed the others stop
                told.is_over = True
        check()
        if check not in self.checks and any(_stays(backend_of(t), packed) for t, packed in todo):
            self.checks.append(check)
        if keeper:
            self.checks += keeper.checks
        if progress:
            progress(told.total, told.total, "")
        self.notes = tuple(keeper.notes) if keeper else ()
        if mlock:
            self.notes += self._locked([t for t, _ in todo if backend_of(t).space == HOST_SPACE])

    def _bring(
        self,
        t: Tensor,
        packed_bytes: int,
        source: WeightSource,
        backend: Backend,
        kept: Mapping[str, Buffer],
        rooms: Mapping[str, np.ndarray],
    ) -> None:
        self.packed.discard(t.name)
        if t.name in kept:
            self.buffers[t.name] = kept[t.name]
        elif t.name in rooms:
            self.buffers[t.name] = _pack(t, source, backend, rooms[t.name])
        else:
            read: Callable[[], np.ndarray] = source.read
            if isinstance(read, RepeatedRows) and backend.repeats_rows:
                read = read.first
            self.buffers[t.name] = backend.load_weight(t, read(), packed_bytes > 0)
        if packed_bytes:
            self.packed.add(t.name)
            space = backend.space
            self.repacked_bytes[space] = self.repacked_bytes.get(space, 0) + packed_bytes
            source.release()

    def make_compact(self, found: Iterable[Room], must: bool) -> None:
        """Bring weights that were loaded into their compact form. must: raise MemoryError where
        others have taken the memory meanwhile, instead of going without it."""
        for room in found:
            compactor, space = room.compactor, room.device.space
            try:
                made = compactor.make([(t, of, self.buffers[t.name]) for t, of in room.weights])
            except MemoryError:
                if must:
                    raise
                self.notes += (f"{space}: memory for compact weights was taken meanwhile",)
                continue
            self.compact_bytes[space] = made
            if made < room.total:
                self.notes += (f"{space}: weights of about 2 and more have no compact form",)

    def _locked(self, weights: Sequence[Tensor]) -> tuple[str, ...]:
        """Lock what is held of these; what there is to say of it."""
        buffers = [self.buffers[t.name] for t in weights]
        said = lock((b.address, b.nbytes) for b in buffers)
        return () if said is None else (said,)

    def bring_others(
        self, plan: Plan, sources: Mapping[str, WeightSource], backends: Mapping[str, Backend]
    ) -> None:
        """Weights that another process holds and that are read here too, as the file has them."""
        here = {b.space: b for b in backends.values() if b.holds}
        for c in plan.brought:
            t = c.owner
            if t.role is Role.WEIGHT and c.target in here and c.source not in here:
                self.buffers[t.name] = here[c.target].load_weight(t, sources[t.name].read(), False)


class _Told:
    """Progress, of several threads."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._done, self.total = progress, 0, total
        self._lock = Lock()
        self.is_over = False

    def begin(self, t: Tensor) -> None:
        if self._progress:
            with self._lock:
                self._progress(self._done, self.total, t.name)

    def end(self, t: Tensor) -> None:
        with self._lock:
            self._done += t.nbytes


def _by_device(
    bring: Callable[[Sequence[tuple[Tensor, int]]], None],
    todo: Sequence[tuple[Tensor, int]],
    backend_of: Callable[[Tensor], Backend],
) -> None:
    """A thread for each device where there are several: a bus each, and reading is shared."""
    parts: dict[Backend | None, list[tuple[Tensor, int]]] = {}
    for t, packed_bytes in todo:
        backend = backend_of(t)
        apart = backend if backend.memory is not None else None
        parts.setdefault(apart, []).append((t, packed_bytes))
    if len(parts) < 2:
        return bring(todo)
    from gguflow.engine.pool import Pool

    threads = Pool(len(parts))
    try:
        for future in [threads.submit(bring, mine) for mine in parts.values()]:
            future.result()
    finally:  # an interrupt does not wait for what others bring
        threads.shutdown(wait=False)
    return None


def _kept(
    todo: Iterable[tuple[Tensor, int]],
    sources: Mapping[str, WeightSource],
    backend_of: Callable[[Tensor], Backend],
    keeper: Keeper,
    stack: ExitStack,
) -> tuple[dict[str, Buffer], dict[str, np.ndarray]]:
    """What is kept of repacked weights, as buffers, and rooms for those that will be."""
    kept: dict[str, Buffer] = {}
    rooms: dict[str, np.ndarray] = {}
    items: dict[Packer, list[Item]] = {}
    for t, packed_bytes in todo:
        packer = backend_of(t).packer
        from_file = isinstance(sources[t.name].read, FileBytes)
        if packed_bytes and packer is not None and from_file and backend_of(t).memory is None:
            items.setdefault(packer, []).append(Item(t, sources[t.name], packed_bytes))
    for packer, of_packer in items.items():
        if sum(i.n_bytes for i in of_packer) < LEAST:
            continue
        if found := keeper.find(of_packer, packer):
            kept |= {name: packer.buffer(data) for name, data in found.items()}
        elif making := keeper.keep(of_packer, packer):
            stack.enter_context(making)
            rooms |= {i.tensor.name: making.room(i.tensor.name) for i in of_packer}
    return kept, rooms


def _pack(t: Tensor, source: WeightSource, backend: Backend, room: np.ndarray) -> Buffer:
    assert backend.packer is not None
    backend.packer.pack(t, source.read(), room)
    return backend.packer.buffer(room)


def _stays(backend: Backend, packed_bytes: int) -> bool:
    """Whether a weight is read where its file is mapped."""
    return backend.space == HOST_SPACE and not packed_bytes


def weight_users(plan: Plan) -> dict[Tensor, list[Tensor]]:
    """The nodes that read each tensor."""
    users: dict[Tensor, list[Tensor]] = {}
    for n in plan.nodes:
        for s in n.live_srcs():
            users.setdefault(s.owner, []).append(n)
    return users
