"""Launches ssm_conv.cu, gated_delta.cu and ssm_scan.cu: ops with a state a sequence."""

from __future__ import annotations

import struct

from gguflow.engine.graph import Tensor, op_spec

from .launch import Call, Kernel, Launch, Operand, ceil_div, pack, register

OPS = ("ssm_conv", "gated_delta", "ssm_scan")
CHANNELS = 128  # of a block of ssm_conv.cu
COLUMNS = 32  # of a head's state, of a block of the others
ROWS = (8, 16, 32, 64)  # of a state, a lane
MOST_ROWS = 128  # of a grid: beyond them blocks loop


def _state_rows(node: Tensor) -> int:
    """Rows of a head's state."""
    return int(node.params["dk" if node.op == "gated_delta" else "n_state"])


def supports(node: Tensor) -> bool:
    return node.op == "ssm_conv" or _state_rows(node) <= 4 * ROWS[-1]


def _sequences(pos: Operand, slot: Operand, state: Operand) -> bytes:
    """`Sequences` of recurrent.cuh."""
    return struct.pack("@2P2i", pos.address, slot.address, slot.ne[0], state.ne[1])


def launches(call: Call) -> list[Launch]:
    node, dst = call.node, call.dst
    params = op_spec(node.op or "").pack_params(node.params)
    at = 2 if node.op == "ssm_conv" else 5
    state, pos, slot = (call.src(i) for i in range(at, at + 3))
    seqs = _sequences(pos, slot, state)
    if node.op == "ssm_conv":
        bias = call.optional(5)
        address = struct.pack("@P", 0 if bias is None else bias.address)
        args = pack(dst, call.src(0), call.src(1), state, address + seqs + params)
        grid = (ceil_div(dst.ne[0], CHANNELS), min(dst.ne[1], 1024), 1)
        return [Launch(Kernel("ssm_conv.cu", "ssm_conv"), grid, (CHANNELS, 1, 1), args)]
    n_tensors = 3 if node.op == "gated_delta" else 2
    tensors = [call.src(i) for i in range(n_tensors)]
    vectors = [call.src(i) for i in range(n_tensors, at)]
    addresses = struct.pack(f"@{len(vectors)}P", *(v.address for v in vectors))
    rows = next(r for r in ROWS if 4 * r >= _state_rows(node))
    args = pack(dst, *tensors, state, addresses + seqs + params)
    grid = (dst.ne[1] * ceil_div(dst.ne[0], COLUMNS), min(dst.ne[2], MOST_ROWS), 1)
    kernel = Kernel(f"{node.op}.cu", f"{node.op}<{rows}>")
    return [Launch(kernel, grid, (128, 1, 1), args)]


register(OPS, launches, supports=supports)
