"""Products by kernels of Hopper, of several columns, and with `DeviceInfo.equal_bits` of one and of
any number: which of them a node goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

from gguflow.engine.graph import DType, Tensor

from . import (
    mul_mat_chain,
    mul_mat_columns,
    mul_mat_few,
    mul_mat_fragments,
    mul_mat_fragments_few,
    mul_mat_fragments_many,
    mul_mat_integers,
    mul_mat_library,
    mul_mat_one,
    mul_mat_one_float,
    mul_mat_stream,
    mul_mat_tiles,
    mul_mat_tma,
    mul_mat_tma_many,
    mul_mat_wide,
)
from .columns import GLU, PLAIN, QKV, Product, columns_between, products
from .gemm import Gemm
from .launch import Call, DeviceInfo, Launch, Operand
from .launch import launches as launches_of
from .mul_mat_vec import FASTEST

MOST = 256  # columns up to which these come before a library's product of quantized weights
# Where more take less time, if there are tiles for all multiprocessors (H200, 8B).
_MOST_OF = {"q4_0": 512}
# The same of 16-bit weights, where a kernel of ours does what a library needs several launches for,
# and where tensor maps bring weights and columns.
FLOATS = {PLAIN: mul_mat_stream.MOST, GLU: 64, QKV: 128}
TMA = {PLAIN: 192, GLU: 256, QKV: 384}
# With equal bits a library is faster from so many columns and so many products of two numbers on,
# where k has no parts and blocks are not full.
_LIBRARY, _LARGE = 257, 2e10
# Where k has several parts blocks that go through all of them are fastest beyond so many columns,
# of one matrix with shorter rows than that beyond TMA's.
_MANY, _LONG = {PLAIN: 256, GLU: 64, QKV: 160}, 8192
# With equal bits, of weights that have no parts of k: the first that takes a few columns of them.
CHAINS = (mul_mat_one_float, mul_mat_chain, mul_mat_wide)
# From weights that lie as fragments too: the fastest where they take a product.
FRAGMENTS = (mul_mat_fragments, mul_mat_fragments_few, mul_mat_fragments_many)
MIXED = (mul_mat_one, mul_mat_few)  # which take values of another type than queries and keys


def most_of(t: DType) -> int:
    """Columns up to which these may come before a library's product of weights of this type."""
    return _MOST_OF.get(t.name, MOST)


def vec_most(node: Tensor, srcs: Sequence[Operand | None], device: DeviceInfo) -> int:
    """Columns up to which mul_mat_vec.cu comes first: where a kernel of Hopper takes the node, the
    one for which it is faster, unless that has to have the bits of several."""
    if not applies(node, srcs, device):
        return FASTEST
    return 0 if device.equal_bits else 1


def way(p: Product, device: DeviceInfo) -> ModuleType | None:
    """The launch file that is fastest for a product, or None: a library's, or another kernel."""
    t = p.weights[0].dtype
    if device.equal_bits and not t.is_quantized:
        if parts := mul_mat_tma.parts_of(p, device):
            return _in_parts(p, parts, device)
        return _in_chains(p, device)
    pairs = p.kind != PLAIN and p.norm is not None  # without a norm columns may be there, rounded
    if pairs and _through_parts(p, device) and mul_mat_tma.usual_parts(p, device) > 1:
        return mul_mat_tma_many
    if p.m > mul_mat_stream.MOST and _is_faster(p) and mul_mat_tma.takes(p, device):
        return mul_mat_tma
    if fragments := next((w for w in FRAGMENTS if w.takes(p, device)), None):
        return fragments
    if p.chunk:
        return _columns(p, device)
    if p.m > mul_mat_few.MOST and mul_mat_integers.takes(p, device):
        return mul_mat_integers
    if p.m > (MOST if t.is_quantized else FLOATS[p.kind]):
        tiles = p.m <= most_of(t) and mul_mat_tiles.takes(p, device)
        tiles &= p.kind != GLU or p.norm is not None  # or the norm crosses from others, in 16 bits
        return mul_mat_tiles if tiles and mul_mat_tiles.is_full(p, device) else None
    ways = (mul_mat_one, mul_mat_few, mul_mat_stream)
    return next((w for w in ways if w.takes(p, device)), _columns(p, device))


def _is_faster(p: Product) -> bool:
    """Whether mul_mat_tma.cu is faster than a library with what it needs around it."""
    return p.m <= TMA[p.kind] or (p.kind == GLU and mul_mat_tma.fills(p))


def _through_parts(p: Product, device: DeviceInfo) -> bool:
    """Whether blocks that go through all parts of k are fastest where it has several."""
    most = TMA[PLAIN] if p.kind == PLAIN and p.k < _LONG else _MANY[p.kind]
    return p.m > most and mul_mat_tma_many.takes(p, device)


def _in_parts(p: Product, parts: int, device: DeviceInfo) -> ModuleType:
    """Whichever is fastest of those that add in parts of k."""
    if p.m == 1:
        return mul_mat_one_float
    if parts > 1:
        return mul_mat_tma_many if _through_parts(p, device) else mul_mat_tma
    slow = p.m >= _LIBRARY and p.m * p.n * p.k > _LARGE and not mul_mat_tma.fills(p)
    return mul_mat_library if slow and mul_mat_library.in_order(p, device) else mul_mat_tma


def _in_chains(p: Product, device: DeviceInfo) -> ModuleType | None:
    """The same of those that have one chain along k."""
    ours = () if mul_mat_library.in_order(p, device) else (mul_mat_tma_many,)
    return next((w for w in (*CHAINS, *ours, mul_mat_library) if w.takes(p, device)), None)


def _columns(p: Product, device: DeviceInfo) -> ModuleType | None:
    """Whichever of those that give the same bits is fastest, of those that take a product."""
    if mul_mat_tiles.takes(p, device) and mul_mat_tiles.is_faster(p, device):
        return mul_mat_tiles
    return mul_mat_columns if mul_mat_columns.takes(p, device) else None


def _classes(node: Tensor, device: DeviceInfo) -> list[tuple[int, int, bool]]:
    """The rows of a node that are multiplied together, along axis 0: from, to, whether they are of
    the chunk class."""
    n, m = node.n_single, node.shape[0]
    # 16-bit weights have one order for both classes.
    if not device.equal_bits or not any(s.dtype.is_quantized for s in node.live_srcs()):
        return [(0, m, False)]
    if n is None or device.one_class:
        return [(0, m, device.one_class)]
    return [part for part in ((0, n, False), (n, m, True)) if part[0] < part[1]]


def _of_class(ps: list[Product], node: Tensor, begin: int, end: int, chunk: bool) -> list[Product]:
    """A node's products of some of its rows."""
    if end - begin < node.shape[0]:
        ps = [columns_between(p, begin, end, len(node.shape) - 1) for p in ps]
    return [replace(p, chunk=True) for p in ps] if chunk else ps


def _products(
    node: Tensor, srcs: Sequence[Operand | None], device: DeviceInfo, dst: Operand | None = None
) -> list[list[Product]]:
    """Those of a node, of each class of rows by themselves; values of a type of their own are by
    themselves only where they must."""
    apart = products(node, srcs, dst)
    mixed = products(node, srcs, dst, mixed=True) if len(apart) > 1 else []
    found = []
    for part in _classes(node, device):
        one = _of_class(mixed, node, *part)
        together = len(one) == 1 and any(w.takes(one[0], device) for w in MIXED)
        found.append(one if together and not one[0].chunk else _of_class(apart, node, *part))
    return found


def applies(node: Tensor, srcs: Sequence[Operand | None], device: DeviceInfo) -> bool:
    """Whether `launches` takes this node with these operands (addresses may be zero)."""
    made = _products(node, srcs, device)
    return all(made) and all(way(p, device) is not None for ps in made for p in ps)


def rounds_to(node: Tensor, srcs: Sequence[Operand | None], device: DeviceInfo) -> str | None:
    """As `launch.rounds_to`, of a node that `applies`."""
    if device.equal_bits:  # others round differently
        return None
    ps = [p for made in _products(node, srcs, device) for p in made]
    ready = all(way(p, device) is mul_mat_tma and p.norm is None for p in ps)
    return ps[0].rounded if ready else None


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    if not applies(node, srcs, device):
        return 0
    made = [(p, way(p, device)) for ps in _products(node, srcs, device) for p in ps]
    # That the weights lie as fragments too is not known here.
    few, many = mul_mat_fragments_few.room, mul_mat_fragments_many.room
    return max(max(w.scratch_bytes(p, device), few(p, device), many(p, device))
               for p, w in made if w is not None)  # fmt: skip


def products_of(call: Call) -> list[list[Product]]:
    """The products of a node that `applies`, of each class of rows by themselves."""
    return _products(call.node, call.srcs, call.device, call.dst)


def product_of(call: Call, sources: Sequence[str]) -> Product | None:
    """The product that is all of an op whose launches are of these kernels' files, or None."""
    if [m.kernel.source if isinstance(m, Launch) else "" for m in launches_of(call)] != sources:
        return None
    [[product]] = products_of(call)
    return product


def compact_launches(call: Call) -> list[Launch]:
    """The launches of a node with one column by mul_mat_one_float.cu, where no equal bits are asked
    for and its weights are there in the form that makes that the fastest; else none."""
    if call.device.equal_bits or not any(s is not None and s.compact for s in call.srcs):
        return []
    ps = products(call.node, call.srcs, call.dst)
    if len(ps) != 1 or not mul_mat_one_float.takes(ps[0], call.device):
        return []
    return mul_mat_one_float.launches(ps[0], call.device, call.scratch)


def launches(call: Call) -> list[Launch | Gemm]:
    """The launches of a node that `applies`."""
    found: list[Launch | Gemm] = []
    for ps in products_of(call):
        first = len(found)
        for p in ps:
            w = way(p, call.device)
            assert w is not None, call.node.name
            given = p if call.rounded is None else replace(p, ready=call.rounded)
            for launch in w.launches(given, call.device, call.scratch):
                if launch not in found[first:]:  # columns that are there already
                    found.append(launch)
    return found
