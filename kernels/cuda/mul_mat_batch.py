"""Products of several columns by kernels of Hopper: which of them a node goes to."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from gguflow.engine.graph import Tensor

from . import mul_mat_columns, mul_mat_stream
from .columns import QKV, Product, products
from .launch import Call, DeviceInfo, Launch, Operand

MOST = 256  # columns up to which these come before a library's product
HEADS = 128  # of 16-bit weights, beyond 16: queries, keys and values alone save launches


def way(p: Product, device: DeviceInfo) -> ModuleType | None:
    """The launch file that is fastest for a product, or None: a library's, or another kernel."""
    if p.m <= mul_mat_stream.MOST:
        ways = [mul_mat_stream, mul_mat_columns]
    elif p.weights[0].dtype.is_quantized or (p.kind == QKV and p.m <= HEADS):
        ways = [mul_mat_columns] if p.m <= MOST else []
    else:
        ways = []
    return next((w for w in ways if w.takes(p, device)), None)


def applies(node: Tensor, srcs: Sequence[Operand | None], device: DeviceInfo) -> bool:
    """Whether `launches` takes this node with these operands (addresses may be zero)."""
    made = products(node, srcs)
    return bool(made) and all(way(p, device) is not None for p in made)


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    srcs = tuple(None if s is None else Operand.of(s, 0) for s in node.srcs)
    if not applies(node, srcs, device):
        return 0
    made = [(p, way(p, device)) for p in products(node, srcs)]
    return max(w.scratch_bytes(p, device) for p, w in made if w is not None)


def launches(call: Call) -> list[Launch]:
    """The launches of a node that `applies`."""
    found: list[Launch] = []
    for p in products(call.node, call.srcs, call.dst):
        w = way(p, call.device)
        assert w is not None, call.node.name
        for launch in w.launches(p, call.device, call.scratch):
            if launch not in found:  # columns that are there already
                found.append(launch)
    return found
