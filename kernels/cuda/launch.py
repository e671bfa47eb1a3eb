"""What a launch is, and how the launch file of an op is found.

A launch file `<name>.py` beside `<name>.cu` has

    OPS = ("silu", ...)                             # the ops it launches
    def launches(call: Call) -> list[Launch]: ...   # what to run, in order; Gemm too
    register(OPS, launches)                         # and what else `OpLaunches` has

A kernel takes one struct by value: tensors first (`gf_tensor` of common.cuh), then numbers. `pack`
builds its bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from math import prod
from pathlib import Path

from gguflow.engine.found import modules_in
from gguflow.engine.graph import DType, Tensor
from gguflow.engine.graph.tensor import MAX_DIMS

from .gemm import Gemm

Dim3 = tuple[int, int, int]
MAX_GRID_X = (1 << 31) - 1  # blocks a grid may have (CUDA programming guide)
MAX_GRID_YZ = 65535  # the same in y and in z
_RESERVED = 1 << 10  # bytes of shared memory that a block takes beside its own
_LONG_ROW = 1 << 24  # no launch cuts a row into pieces of less than 256 elements


@dataclass(frozen=True)
class Kernel:
    """One function of one `.cu` file: a C++ name expression, `unary<silu, f32>`.

    options: of the compiler, besides those every kernel gets; `-arch=` replaces the device's own.
    """

    source: str
    entry: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rounded:
    """Rows that are there as dense rows of 16 bits: of f16 divided by scales, f32 [rows]."""

    dtype: str
    address: int
    scales: int


@dataclass(frozen=True)
class RoundedNorm:
    """What a launch makes of rows of d elements: their norm by `weights` (an address), in 16
    bits."""

    weights: int
    eps: float
    d: int
    to: Rounded


@dataclass(frozen=True)
class TensorMap:
    """A CUtensorMap: how tiles of a matrix of 16-bit floats come into shared memory, in rows of 128
    bytes whose pieces of 16 are swizzled. What lies outside is zero.

    lengths, tile: in elements, the innermost dimension first. steps: bytes, of all but that one.
    """

    address: int
    dtype: str
    lengths: tuple[int, ...]
    steps: tuple[int, ...]
    tile: tuple[int, ...]


TENSOR_MAP_BYTES = 128


@dataclass(frozen=True)
class Launch:
    """One kernel launch. args: the bytes of its argument struct, behind those of `maps`. shared:
    dynamic shared memory.

    dependent: the kernel calls griddepcontrol.wait, so it may start before the one before it ends
    (programmatic dependent launch; ignored below sm_90).
    leaves: the value of which it leaves another form at the start of the scratch memory; it is then
    the first launch of its op. The next op to start with the same launch finds it there.
    norm: that it makes nothing but that, of the rows of this value: an exchange may do so instead.
    roomy: the same with more shared memory, for where this one has no room beside the launch before
    it anyway (`with_room`).
    """

    kernel: Kernel
    grid: Dim3
    block: Dim3
    args: bytes
    shared: int = 0
    dependent: bool = False
    leaves: Tensor | None = None
    norm: RoundedNorm | None = None
    maps: tuple[TensorMap, ...] = ()
    roomy: Launch | None = None

    @property
    def n_argument_bytes(self) -> int:
        """Of the whole struct."""
        return TENSOR_MAP_BYTES * len(self.maps) + len(self.args)


# Clusters of so many blocks, a multiprocessor each, that run at once (H200: 132 multiprocessors, in
# groups of sixteen and eighteen, some less).
CLUSTERS = {1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15}


@dataclass(frozen=True)
class DeviceInfo:
    """What launches may depend on.

    shared_per_block: with the opt-in attribute. equal_bits: a column has the same bits alone and
    among any number of others, where mul_mat_batch.py has kernels for that, which are slower.
    one_class: with that, columns of generated tokens have the bits of a prompt's, which many get
    faster and a few slower.
    """

    arch: str = "sm_90"
    sm_count: int = 132
    threads_per_sm: int = 2048
    shared_per_block: int = 227 << 10
    equal_bits: bool = False
    one_class: bool = False

    @property
    def has_fragments(self) -> bool:
        """Whether several columns of generated tokens may be multiplied from fragments, with the
        bits that prompts have. Without equal bits newer devices than those that it was measured on
        have what they had."""
        return self.one_class or (not self.equal_bits and self.arch == "sm_90")

    @property
    def is_hopper(self) -> bool:
        """Whether it is one, or newer: bulk copies, dependent launches."""
        return int(self.arch[3:].rstrip("af")) >= 90

    def clusters(self, blocks: int) -> int:
        """How many of so many blocks each, that fill a multiprocessor, run at once."""
        return max(1, CLUSTERS[blocks] * self.sm_count // CLUSTERS[1])

    def shared_beside(self, other: int) -> int:
        """Bytes of shared memory that a block may have to lie on a multiprocessor with one that has
        so many."""
        return self.shared_per_block - other - _RESERVED

    def shared_among(self, n: int) -> int:
        """Bytes of shared memory that each of n blocks of a multiprocessor may have."""
        return (self.shared_per_block + _RESERVED) // n - _RESERVED


@dataclass(frozen=True)
class CompactForm:
    """Where a weight is in its compact form, and how it lies there: a `Layout` of compact.py."""

    address: int
    layout: str


@dataclass(frozen=True)
class Operand:
    """A tensor on the device: address of the first element, ggml's ne and nb, type. compact: of a
    weight that is there in that form too."""

    address: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    dtype: DType
    compact: CompactForm | None = None

    @classmethod
    def of(cls, t: Tensor, address: int) -> Operand:
        ne, nb = t.ne_nb()
        return cls(address, ne, nb, t.dtype)

    @property
    def size(self) -> int:
        return prod(self.ne)

    @property
    def rows(self) -> int:
        return prod(self.ne[1:])

    @property
    def is_dense(self) -> bool:
        """No gaps and the usual order; for plain types only."""
        step = self.dtype.nbytes
        for n, b in zip(self.ne, self.nb, strict=True):
            if n > 1 and b != step:
                return False
            step *= n
        return self.dtype.block == 1

    def shift(self, nbytes: int, ne: tuple[int, ...] = (), nb: tuple[int, ...] = ()) -> Operand:
        """The operand that starts `nbytes` later, with other ne or nb if given."""
        at = self.address + nbytes
        return replace(self, address=at, ne=ne or self.ne, nb=nb or self.nb, compact=None)


@dataclass(frozen=True)
class Call:
    """A node with addresses: what a launch file turns into launches.

    rounded: where the columns of a product are already, as `OpLaunches.rounds_to` wants them.
    """

    node: Tensor
    dst: Operand
    srcs: tuple[Operand | None, ...]
    device: DeviceInfo
    scratch: int = 0  # address of `scratch_bytes` bytes
    rounded: Rounded | None = None

    def src(self, i: int) -> Operand:
        """Source `i`, which must be there."""
        operand = self.srcs[i]
        assert operand is not None, f"{self.node.name}: operand {i} is missing"
        return operand

    def optional(self, i: int) -> Operand | None:
        return self.srcs[i] if i < len(self.srcs) else None


def apart(a: Operand, b: Operand) -> bool:
    """Whether no byte belongs to both, as far as the memory between first and last tells."""
    begins = a.address, b.address
    ends = [
        o.address + sum((n - 1) * s for n, s in zip(o.ne[1:], o.nb[1:], strict=True))
        + o.dtype.row_bytes(o.ne[0])
        for o in (a, b)
    ]  # fmt: skip
    return ends[0] <= begins[1] or ends[1] <= begins[0]


def may_run_at_once(calls: Sequence[Call]) -> bool:
    """Whether nothing that these calls write lies where another of them writes, or where one reads
    what none of them makes."""
    made = {c.node for c in calls}
    read = [o for c in calls for t, o in zip(c.node.srcs, c.srcs, strict=True)
            if o is not None and t not in made]  # fmt: skip
    results = [c.dst for c in calls]
    return all(apart(o, other) for i, o in enumerate(results) for other in (*results[:i], *read))


_TENSOR = struct.Struct(f"@P{2 * MAX_DIMS}q")
TENSOR_BYTES = 72  # of a gf_tensor, as common.cuh asserts too
if _TENSOR.size != TENSOR_BYTES:
    raise ImportError(f"a tensor packs to {_TENSOR.size} bytes, gf_tensor has {TENSOR_BYTES}")


def pack(*parts: Operand | bytes | None) -> bytes:
    """The argument struct: tensors (None: a null one), then raw fields, padded at the end."""
    out = b"".join(
        p
        if isinstance(p, bytes)
        else _TENSOR.pack(0, *(0,) * 2 * MAX_DIMS)
        if p is None
        else _TENSOR.pack(p.address, *p.ne, *p.nb)
        for p in parts
    )
    return out + bytes(-len(out) % 16)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def places_of(sizes: Iterable[int], aligned: int, first: int = 0) -> list[int]:
    """Where pieces of so many bytes begin that lie one after the other from `first` on, each at a
    multiple of `aligned` behind it, and where the last one ends."""
    places = [first]
    for size in sizes:
        places.append(places[-1] + ceil_div(size, aligned) * aligned)
    return places


def fast_div(d: int) -> bytes:
    """`FastDiv` of common.cuh: division of numbers below 2^31 by multiplying and shifting.

    Granlund and Montgomery 1994, section 4: with L = ceil(log2 d), m = 2^32 (2^L - d) / d + 1.
    """
    if not 0 < d < 1 << 31:
        return struct.pack("@3I", 0, 0, 1)  # such tensors are indexed with 64-bit division
    shift = (d - 1).bit_length()
    return struct.pack("@3I", ((1 << 32) * ((1 << shift) - d)) // d + 1, shift, d)


def cpp_type(dtype: DType) -> str:
    """The type's name in the kernels."""
    return f"block_{dtype.name}" if dtype.is_quantized else dtype.name


@cache
def _quantized_types() -> frozenset[str]:
    """Types with a block struct: what dequant.cuh includes, in lower case."""
    text = (Path(__file__).parent / "dequant.cuh").read_text()
    return frozenset(re.findall(r'#include "quants/(\w+)\.h"', text))


def has_cpp_type(dtype: DType) -> bool:
    """Whether kernels read and write elements of this type as floats."""
    if dtype.is_quantized:
        return dtype.name.lower() in _quantized_types()
    return dtype.name in ("f32", "f16", "bf16")  # Float<T> of common.cuh


def _every(node: Tensor) -> bool:
    return True


def _nothing(node: Tensor, device: DeviceInfo) -> int:
    return 0


def _not(node: Tensor, device: DeviceInfo) -> str | None:
    return None


def _dense_only(node: Tensor, device: DeviceInfo) -> bool:
    return False


@dataclass
class OpLaunches:
    """What a launch file says of its ops."""

    launches: Callable[[Call], Sequence[Launch | Gemm]]
    supports: Callable[[Tensor], bool]
    supports_equal: Callable[[Tensor], bool]  # the same with equal_bits
    scratch_bytes: Callable[[Tensor, DeviceInfo], int]  # temporary device memory
    rounds_to: Callable[[Tensor, DeviceInfo], str | None]  # of a product: what its columns become
    any_type: bool  # elements are moved, not read
    strided: Callable[[Tensor, DeviceInfo], bool]  # see `supports_strides`


_registered: dict[str, OpLaunches] = {}


def register(
    ops: Sequence[str],
    launches: Callable[[Call], Sequence[Launch | Gemm]],
    *,
    supports: Callable[[Tensor], bool] = _every,
    supports_equal: Callable[[Tensor], bool] | None = None,
    scratch_bytes: Callable[[Tensor, DeviceInfo], int] = _nothing,
    rounds_to: Callable[[Tensor, DeviceInfo], str | None] = _not,
    any_type: bool = False,
    strided: Callable[[Tensor, DeviceInfo], bool] = _dense_only,
) -> None:
    """Raises RuntimeError for an op that another file launches."""
    made = OpLaunches(
        launches, supports, supports_equal or supports, scratch_bytes, rounds_to, any_type, strided
    )
    for op in ops:
        if op in _registered:
            raise RuntimeError(f"{op}: launched by two files, one is {launches.__module__}")
        _registered[op] = made


# Of the calls that follow each other from one on: what computes the first of them together, with
# each the launches that are its own.
Joint = Callable[[Sequence[Call]], "list[list[Launch]] | None"]
_joints: dict[str, list[Joint]] = {}
MOST_JOINED = 4  # calls


def register_joint(ops: Sequence[str], joint: Joint) -> None:
    """Several ops in a row, of which the first is one of `ops`, as fewer launches than they have by
    themselves: all of their results are written, so that graphs need not know. They may use the
    scratch memory together."""
    for op in ops:
        _joints.setdefault(op, []).append(joint)


def joined(calls: Sequence[Call]) -> list[list[Launch]] | None:
    """The launches of the first calls together, where a launch file knows some."""
    launch_files()
    for joint in _joints.get(calls[0].node.op or "", ()):
        found = joint(calls)
        if found is not None:
            return found
    return None


@cache
def launch_files() -> dict[str, OpLaunches]:
    """What the launch files say of every op that has one."""
    package = import_module(__package__)
    for m in modules_in(package.__path__):
        import_module(f"{__package__}.{m.name}")
    return _registered


def supports(node: Tensor, equal_bits: bool = False) -> bool:
    """Whether some launch file takes this node, and its launches are such that a device takes.
    equal_bits: as in `DeviceInfo`."""
    of_op = launch_files().get(node.op or "")
    if of_op is None or node.size == 0:
        return False
    if not of_op.any_type and not all(
        t.dtype.is_integer or has_cpp_type(t.dtype) for t in (node, *node.live_srcs())
    ):
        return False
    takes = of_op.supports_equal if equal_bits else of_op.supports
    device = DeviceInfo(equal_bits=equal_bits)
    return takes(node) and (not _is_large(node) or _fits(node, device))


def _is_large(node: Tensor) -> bool:
    """Whether some grid may be too large, which only making the launches tells."""
    return any(
        t.size > MAX_GRID_X
        or prod(t.shape[:-1]) > MAX_GRID_YZ
        or max(t.shape, default=1) > _LONG_ROW
        for t in (node, *node.live_srcs())
    )


def _fits(node: Tensor, device: DeviceInfo) -> bool:
    """Whether the grids, and the lengths that kernels take as 32-bit numbers, are in range."""
    srcs = tuple(None if s is None else Operand.of(s, s.view_offset) for s in node.srcs)
    try:
        made = launches(Call(node, Operand.of(node, node.view_offset), srcs, device))
    except struct.error:  # a number that its field cannot hold
        return False
    return all(is_legal(m.grid) for m in made if isinstance(m, Launch))


def is_legal(grid: Dim3) -> bool:
    """Whether a device launches a grid of this size."""
    return 0 < grid[0] <= MAX_GRID_X and all(0 < n <= MAX_GRID_YZ for n in grid[1:])


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    """Temporary device memory the node's launches want."""
    return launch_files()[node.op or ""].scratch_bytes(node, device)


def supports_strides(node: Tensor, device: DeviceInfo) -> bool:
    """Whether the launches of a node write its result with the strides that it has, which may leave
    gaps between rows, from its offset on."""
    of_op = launch_files().get(node.op or "")
    return of_op is not None and of_op.strided(node, device)


def rounds_to(node: Tensor, device: DeviceInfo) -> str | None:
    """The 16-bit type that a node's launches first round all columns of a product to, as dense
    rows; None where they do not. With such rows in `Call.rounded` they are taken from there."""
    return launch_files()[node.op or ""].rounds_to(node, device)


def launches(call: Call) -> Sequence[Launch | Gemm]:
    """The launches that compute a node."""
    return launch_files()[call.node.op or ""].launches(call)
