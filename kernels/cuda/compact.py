"""The compact form of weights, from which single columns, of quantized ones up to 128, are
multiplied: what it takes, which products read it, and the launch that makes it. Of 16-bit weights
it is a bit less each, made by compact.cu; quantized ones lie as fragments (fragments.py).

A weight below 2 in magnitude has a 0 as the highest bit of its exponent, in f16 and in bf16. All
other bits are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from gguflow.engine.graph import DType, Tensor

from .fragments import EIGHT, UNIT, fragment_row_bytes, fragments_launch, has_fragments
from .launch import (
    Call,
    CompactForm,
    DeviceInfo,
    Kernel,
    Launch,
    Operand,
    ceil_div,
    launches,
    pack,
    supports,
)

TYPES = ("f16", "bf16")
_SET = 32  # weights that a thread has of a unit
_THREADS, _MOST_BLOCKS = 256, 1 << 16
_MADE_UP = 1 << 40  # an address


@dataclass(frozen=True)
class Layout:
    """How words lie, a struct of compact.cuh, in units of so many rows and weights of each."""

    name: str
    rows: int
    weights: int


EIGHTS, ALONG = Layout("Eights", 8, 128), Layout("Along", 1, 1024)
FRAGMENTS = Layout("Fragments", EIGHT, UNIT)  # of quantized weights


def row_bytes(t: DType, k: int) -> int:
    """Of k weights, whole units; of a row that lies among others, what it takes of them."""
    return fragment_row_bytes(t, k) if has_fragments(t) else k // 8 * 15


def _is_whole(shape: Sequence[int], layout: Layout) -> bool:
    rows, k = shape
    return k % layout.weights == 0 and rows % layout.rows == 0


def is_compact(weights: Sequence[Operand], layout: Layout) -> bool:
    """Whether all of these are there in that form and lie so."""
    return all(
        w.compact is not None
        and w.compact.layout == layout.name
        and _is_whole((w.ne[1], w.ne[0]), layout)
        for w in weights
    )


def compact_rows(w: Operand) -> Operand:
    """The rows in that form, of which each could lie by itself for what they take."""
    assert w.compact is not None
    step = row_bytes(w.dtype, w.ne[0])
    return replace(w, address=w.compact.address, nb=(w.nb[0], step, *w.nb[2:]))


def layouts_of(t: DType) -> tuple[Layout, ...]:
    """How weights of a type may lie, the first that is of use before others."""
    if has_fragments(t):
        return (FRAGMENTS,)
    return (EIGHTS, ALONG) if t.name in TYPES else ()


def layout_of(weight: Tensor, users: Sequence[Tensor], device: DeviceInfo) -> Layout | None:
    """How a weight lies in its compact form for those of these nodes that read it so; None where
    none does."""
    if len(weight.shape) != 2:
        return None
    for layout in layouts_of(weight.dtype):
        whole = _is_whole(weight.shape, layout)
        if whole and any(_reads(node, weight, layout, device) for node in users):
            return layout
    return None


def kind_of_use(weight: Tensor, users: Sequence[Tensor]) -> Hashable:
    """What `layout_of` depends on, the same for most layers."""
    return weight.shape, weight.dtype.name, *(
        (n.op, n.shape, n.strides, n.n_single, repr(sorted(n.params.items())),
         *(s and (s.shape, s.strides, s.dtype.name, s is weight) for s in n.srcs))
        for n in users
    )  # fmt: skip


def compact_bytes(weight: Tensor) -> int:
    """Of a weight in that form."""
    rows, k = weight.shape
    return rows * row_bytes(weight.dtype, k)


def _reads(node: Tensor, weight: Tensor, layout: Layout, device: DeviceInfo) -> bool:
    """Whether the launches of a node are others where its weights are compact."""
    if not supports(node, device.equal_bits) or all(s is not weight for s in node.srcs):
        return False

    def call(is_compact: bool) -> Call:
        def operand(i: int, t: Tensor) -> Operand:
            address = (i + 1) * _MADE_UP
            form = CompactForm(address + _MADE_UP // 2, layout.name)
            has = is_compact and t.owner is t and layouts_of(t.dtype)
            return replace(Operand.of(t, address), compact=form if has else None)

        srcs = (None if s is None else operand(i, s) for i, s in enumerate(node.srcs))
        return Call(node, Operand.of(node, 100 * _MADE_UP), tuple(srcs), device, 101 * _MADE_UP)

    return launches(call(False)) != launches(call(True))


def compact_launch(w: Operand, to: CompactForm, too_large: int) -> Launch:
    """Makes the compact form of w. too_large: address of an i32 that becomes 1 where that form
    cannot hold a weight, being 2 or more in magnitude, or of fragments a scale."""
    if to.layout == FRAGMENTS.name:
        return fragments_launch(w, to, too_large)
    k, rows = w.ne[:2]
    layout = next(x for x in (EIGHTS, ALONG) if x.name == to.layout)
    numbers = w.address, to.address, too_large, w.nb[1], rows, k // layout.weights
    blocks = ceil_div(rows * k, _SET * _THREADS)
    kernel = Kernel("compact.cu", f"compact_rows<{layout.name}>")
    grid = min(blocks, _MOST_BLOCKS), 1, 1
    return Launch(kernel, grid, (_THREADS, 1, 1), pack(struct.pack("@3P3q", *numbers)))
