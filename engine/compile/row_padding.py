"""Rows of quantized weights that begin where a device's wide loads and bulk copies want them.

2,560 values in Q6_K are 2,100 bytes: no row but every fourth begins at a multiple of 16, and a
kernel that copies 16 bytes at once could take none. On a device that says so (`row_unit`) such rows
have a few bytes of zeros behind them. It is the weight's strides that say it, so nobody but who
brings weights to the device has to know.
"""

from __future__ import annotations

import numpy as np

from gguflow.engine.graph import DType, Graph, Role, Tensor
from gguflow.engine.graph.tensor import Shape, contiguous_strides

from .place import PlacementRules, place_leaves

_LONGEST = 1 << 20  # bytes of a row that is padded: uploads hold whole rows


def pad_rows(graph: Graph, rules: PlacementRules) -> None:
    """Give the matrices that are no multiples of their device's unit strides that are. Those that
    views look into stay as they are."""
    units = {b.name: b.memory.row_unit for b in rules.order if b.memory is not None}
    if all(unit == 1 for unit in units.values()):
        return
    viewed = {s.owner for n in graph.nodes for s in n.live_srcs() if s.owner is not s}
    for leaf, name in place_leaves(graph.leaves, rules).items():
        if leaf.role is Role.WEIGHT and leaf not in viewed:
            leaf.strides = padded_strides(leaf.dtype, leaf.shape, units.get(name, 1))


def padded_strides(dtype: DType, shape: Shape, unit: int) -> tuple[int, ...]:
    """Byte strides of a weight whose rows begin at multiples of `unit` if it is quantized."""
    strides = contiguous_strides(shape, dtype)
    if len(shape) < 2 or not dtype.is_quantized or not 0 < strides[-2] <= _LONGEST:
        return strides
    more = -strides[-2] % unit
    outer = [strides[-2] + more]
    for n in reversed(shape[1:-1]):
        outer.append(outer[-1] * n)
    return (*reversed(outer), strides[-1])


def padded_bytes(dtype: DType, shape: Shape, unit: int) -> int:
    """Bytes of such a weight."""
    return Tensor("", dtype, shape, Role.WEIGHT, padded_strides(dtype, shape, unit)).stored_bytes


def row_gap(weight: Tensor) -> tuple[int, int] | None:
    """(bytes of a row, bytes of padding behind it), or None where rows follow each other."""
    if weight.stored_bytes == weight.nbytes:
        return None
    row = weight.dtype.row_bytes(weight.shape[-1])
    return row, weight.strides[-2] - row


def with_gaps(weight: Tensor, raw: np.ndarray) -> np.ndarray:
    """A weight's bytes as its strides have them: uint8, flat; without padding, `raw` itself."""
    flat, gap = raw.reshape(-1).view(np.uint8), row_gap(weight)
    if gap is None:
        return flat
    row, more = gap
    out = np.zeros((len(flat) // row, row + more), np.uint8)
    out[:, :row] = flat.reshape(-1, row)
    return out.reshape(-1)
