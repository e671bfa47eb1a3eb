"""Launches reduce.cu."""

from __future__ import annotations

import struct
from dataclasses import replace

from gguflow.engine.graph import Tensor

from .elementwise import cpp_bool, divisors
from .launch import Call, DeviceInfo, Kernel, Launch, Operand, ceil_div, pack, register

OPS = ("sum", "mean", "max", "argmax")

# (longest dimension, threads a result); (.., neighbouring results and threads a result of a block)
_ROWS = ((8, 1), (32, 2), (64, 4), (512, 8), (2048, 32), (4096, 128), (1 << 15, 256),
         (1 << 17, 1024))  # fmt: skip
_COLUMNS = ((8, (256, 1)), (128, (32, 8)), (1 << 13, (32, 32)))
ROW_SLICE = 1 << 15  # elements of a row that is longer than those above
COLUMN_SLICE = 1 << 12
STATE_BYTES = {"argmax": 8}  # others 4


def _reduced(node: Tensor) -> int:
    return -1 - int(node.params["axis"])  # innermost first


def _by_rows(nb: tuple[int, ...], d: int) -> bool:
    """Whether the reduced dimension is the one of neighbours in memory. Dimensions of length one
    count as others, so that the way a result is summed does not depend on how many there are."""
    return all(nb[d] < b for i, b in enumerate(nb) if i != d)


def _slice(n: int, rows: bool) -> int:
    """Elements of the dimension that a block takes: all of them, rounded up to packs, or a part."""
    longest, part = (_ROWS[-1][0], ROW_SLICE) if rows else (_COLUMNS[-1][0], COLUMN_SLICE)
    return 4 * ceil_div(n, 4) if n <= longest else part


def supports(node: Tensor) -> bool:
    """Kernels count along the dimension in 32 bits, as does the result of argmax."""
    return node.live_srcs()[0].shape[node.params["axis"]] < 1 << 31


def scratch_bytes(node: Tensor, device: DeviceInfo) -> int:
    x, d = node.live_srcs()[0], _reduced(node)
    ne, nb = x.ne_nb()
    slices = ceil_div(ne[d], _slice(ne[d], _by_rows(nb, d)))
    return slices * node.size * STATE_BYTES.get(node.op or "", 4) if slices > 1 else 0


def _without(o: Operand, order: list[int]) -> Operand:
    return replace(o, ne=tuple(o.ne[i] for i in order), nb=tuple(o.nb[i] for i in order))


def launches(call: Call) -> list[Launch]:
    x, d = call.src(0), _reduced(call.node)
    functor, results, n, step = f"{call.node.op}_", call.dst.size, x.ne[d], x.nb[d]
    rows = _by_rows(x.nb, d)
    slice_ = _slice(n, rows)
    slices = ceil_div(n, slice_)
    # Neighbouring threads get results that are neighbours in memory.
    others = sorted((i for i in range(4) if i != d), key=lambda i: (x.ne[i] == 1, x.nb[i]))
    dst, x = (_without(o, [*others, d]) for o in (call.dst, x))

    lengths = divisors(dst.ne)

    def launch(entry: str, grid: tuple[int, int], block: tuple[int, int], slice_: int) -> Launch:
        args = pack(dst, x, struct.pack("@P4q", call.scratch, n, step, slice_, results) + lengths)
        return Launch(Kernel("reduce.cu", entry), (*grid, 1), (*block, 1), args)

    if rows:
        t = next(t for longest, t in _ROWS if min(slice_, n) <= longest)
        fours = [x.address, *(b for m, b in zip(x.ne[:3], x.nb[:3], strict=True) if m > 1)]
        packed = step == 4 and not any(k % 16 for k in fours)
        block = max(t, 256)
        entry = f"reduce_rows<{functor}, {t}, {cpp_bool(packed)}>"
        first = launch(entry, (ceil_div(results, block // t), slices), (block, 1), slice_)
    else:
        bx, by = next(xy for longest, xy in _COLUMNS if min(slice_, n) <= longest)
        entry = f"reduce_columns<{functor}, {bx}, {by}>"
        first = launch(entry, (ceil_div(results, bx), slices), (bx, by), slice_)
    if slices == 1:
        return [first]
    return [first, launch(f"reduce_slices<{functor}>", (ceil_div(results, 4), 1), (128, 1), slices)]


register(OPS, launches, supports=supports, scratch_bytes=scratch_bytes)
