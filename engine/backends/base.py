"""What a backend is: where memory comes from, which ops it runs, how a segment becomes runnable."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from gguflow.engine.graph import Tensor


class Buffer(Protocol):
    """Device memory."""

    nbytes: int

    def host(self) -> np.ndarray | None:
        """The same bytes as a uint8 array, or None where the host cannot reach them.

        Memory of `alloc_shared` gives the host's copy.
        """

    def read(self, offset: int, nbytes: int) -> np.ndarray:
        """Bytes as a uint8 array, a view where the host reaches them; waits for the device."""

    def write(self, offset: int, data: np.ndarray) -> None:
        """Overwrite bytes from `offset` on with those of `data`; waits for the device."""


class Executable(Protocol):
    """A segment ready to run."""

    n_ops: int
    kernels: Sequence[str]  # per op, what runs it

    def run(self, ends_ns: np.ndarray | None = None) -> None:
        """Run all ops. ends_ns: int64 [n_ops + 1] that receives clock readings when profiling."""


class TokenLoop(Protocol):
    """Steps of a plan that feed their tokens to the next one, so that the host need not wait for
    them. Every row of the plan is alone in its sequence, or padding.

    A step writes the next one's `tokens`, `pos`, `rows` of every group of layers (by the group's
    page table, which has to have the pages of all steps that are launched), `sampler.rng` and
    `sampler.history`. An executable that can do so has `token_loop(tensors)`: the plan's inputs by
    name, and the sampled tokens as `token`.
    """

    def start(self) -> None:
        """Take the plan's inputs as they are now. Nothing launched before is running then."""

    def launch(self) -> None:
        """Enqueue one step; at most 64 whose tokens were not waited for."""

    def wait(self, step: int) -> np.ndarray:
        """The tokens of a step, int32 [n], -1 for padding. Steps are counted from 1 since the
        start."""


class Memory(Protocol):
    """Where the tensors of a plan live on one backend: owner tensor -> (buffer, byte offset)."""

    def locate(self, owner: Tensor) -> tuple[Buffer, int]: ...

    def is_packed(self, owner: Tensor) -> bool:
        """Whether a weight is stored in the backend's own layout instead of the file's."""


class Backend(Protocol):
    """One device and the kernels for it."""

    name: str
    space: str  # memory space; tensors move between backends without a copy within one space
    # Optional, for a device's exact forecast: `alloc_unit`, which its allocations are multiples of;
    # `scratch_bytes(nodes)`, what a plan's kernels will share; `reserve(nbytes, scratch)`, which is
    # told before loading what will be allocated in all, and for those kernels.

    def describe(self) -> str:
        """The device and its kernels in one line, for `gguflow devices`."""

    def supports(self, node: Tensor) -> bool:
        """Whether this backend has a kernel for the node's op, types and layout."""

    def peaks(self) -> tuple[float, ...] | None:
        """Measured GB/s read, float32 GFLOP/s, int8 GOP/s and, where units of their own do them,
        float16 GFLOP/s: the fields of `Peaks`. None for a backend without roofs."""

    def alloc(self, nbytes: int) -> Buffer:
        """Zeroed memory. Raises MemoryError with the figures."""

    def alloc_shared(self, nbytes: int) -> Buffer:
        """Zeroed memory for a plan's inputs and small outputs. Its `host()` is never None: on a
        device it is a copy, which runs read inputs from and leave results in."""

    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        """Bytes of `weight` in this backend's own layout, or 0 to use it as it is in the file."""

    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> Buffer:
        """Bring a weight's bytes (uint8) to the device, repacked if `packed`."""

    def compile(
        self, nodes: Sequence[Tensor], memory: Memory, n_threads: int | None = None
    ) -> Executable:
        """Lower a segment's nodes to something runnable; n_threads is for host backends."""


def backend_names() -> list[str]:
    """Every backend there is a module for; making one shows whether this machine can use it."""
    package = import_module("gguflow.engine.backends")
    helpers = ("base", "host", "link")
    return [m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in helpers]


def find_backend(name: str, options: Mapping[str, Any] | None = None) -> Backend:
    """The backend in `gguflow.engine.backends.<name>`, made with `options`.

    Raises LookupError when there is none by that name. The module's own errors pass through.
    """
    if not name.isidentifier():
        raise LookupError(f"no backend called {name!r}")
    try:
        module = import_module(f"gguflow.engine.backends.{name}")
    except ModuleNotFoundError as e:
        if e.name and e.name.startswith("gguflow.engine.backends"):
            raise LookupError(f"no backend called {name!r}") from None
        raise
    backend: Backend = module.create(dict(options or {}))
    return backend
