"""What native code may be given: the one check that every op of a plan passes before it is lowered.

Shape inference has said before that operands fit; but graphs are rewritten, placed and laid out
after that, and kernels believe what a descriptor says. Here the whole of a step is held against the
memory it will run on, once, when a program is made. Numbers that come with a run (rows to write,
ids, page tables, positions) are the kernels' own to check: see each op's sentence on what lies
outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from gguflow.engine.graph import Role, ShapeError, Tensor, is_in_place, op_spec
from gguflow.engine.graph.tensor import MAX_DIMS, contiguous_strides

from .base import Memory

MOST = 1 << 62  # of an extent, a stride or an offset: sums of a few fit 64 bits


class DescriptorError(ValueError):
    """A step that no native code may be given: names the op, the operand and what is wrong with it.
    Whatever made the plan is at fault."""


def check_step(node: Tensor, memory: Memory) -> None:
    """Raises DescriptorError unless the op is what its operands make it, every operand lies within
    its buffer, aligned, and the result shares memory with no operand but as the op allows."""
    try:
        operands = (node, *node.srcs)
        ends = [0 if t is None else check_layout(t) for t in operands]
        _check_op(node)
        spans = [
            None if t is None else _span(t, end, memory)
            for t, end in zip(operands, ends, strict=True)
        ]
        _check_sharing(node, spans)
    except DescriptorError as e:
        raise DescriptorError(f"{node.name}: {node.op}: {e}") from None


def _check_op(node: Tensor) -> None:
    """Number of operands, parameters, type and shape are those of the op."""
    if node.op is None:
        raise DescriptorError("is no op")
    spec = op_spec(node.op)
    least, most = spec.n_srcs
    if not least <= len(node.srcs) <= most or spec.lacks(node.srcs) is not None:
        raise DescriptorError(f"{len(node.live_srcs())} operands, takes {least} to {most}")
    try:
        params = spec.bind_params(node.params)
        dtype, shape = spec.infer(*node.srcs, **params)
    except (ShapeError, TypeError) as e:
        raise DescriptorError(str(e)) from None
    if (dtype, tuple(shape)) != (node.dtype, node.shape):
        raise DescriptorError(
            f"a result of {node.dtype.name}{list(node.shape)}, its operands give "
            f"{dtype.name}{list(shape)}"
        )
    if spec.writes_into is None:
        if node.owner is not node:
            if not any(t is node for t in _made_within(node.owner)):
                raise DescriptorError(f"lies in {node.owner.name}, which it does not write into")
            return
        if node.strides != contiguous_strides(node.shape, node.dtype):
            raise DescriptorError(f"a result with strides {list(node.strides)}")
        return
    target = node.srcs[spec.writes_into]
    assert target is not None
    same = (target.owner, target.view_offset, target.strides)
    if (node.owner, node.view_offset, node.strides) != same:
        raise DescriptorError(f"writes into {target.name}, but lies elsewhere")


def _made_within(joined: Tensor) -> Iterator[Tensor]:
    """The operands that lie where they stand in the result of an op, and theirs."""
    for i, s in enumerate(joined.srcs):
        if s is not None and is_in_place(joined, i):
            yield s
            yield from _made_within(s)


def check_layout(t: Tensor) -> int:
    """The byte after the last one, counted from the owner's first; 0 where there are none. Raises
    DescriptorError unless a tensor's elements lie within its owner's, whole blocks and no dimension
    backwards."""
    shape, strides = t.shape, t.strides
    if len(shape) > MAX_DIMS or len(strides) != len(shape):
        raise DescriptorError(
            f"operand {t.name}: {len(t.shape)} dimensions with {len(t.strides)} strides, "
            f"at most {MAX_DIMS}"
        )
    owner = t.owner
    if owner.owner is not owner or owner.dtype is not t.dtype:
        raise DescriptorError(
            f"operand {t.name}: {t.dtype.name} in {owner.name}, which is {owner.dtype.name}"
        )
    numbers = (*shape, *strides, t.view_offset)
    if min(numbers) < 0 or max(numbers) >= MOST:
        raise DescriptorError(
            f"operand {t.name}: shape {list(t.shape)}, strides {list(t.strides)}, offset "
            f"{t.view_offset}"
        )
    block, nbytes = t.dtype.block, t.dtype.nbytes
    if shape and (shape[-1] % block or (shape[-1] > block > 1 and strides[-1] != nbytes)):
        raise DescriptorError(
            f"operand {t.name}: rows of {t.shape[-1]} with a stride of {t.strides[-1]} are no "
            f"whole blocks of {t.dtype.name}"
        )
    unit = _unit(t)
    end = t.view_offset + nbytes
    for i, n in enumerate(shape):
        if n > 1 and strides[i] % unit:
            raise DescriptorError(f"operand {t.name}: strides {list(t.strides)} split an element")
        blocks = n // block if i == len(shape) - 1 else n
        end += (blocks - 1) * strides[i]
    if not prod(shape):
        end = 0
    if end > owner.stored_bytes:
        raise DescriptorError(
            f"operand {t.name}: ends at byte {end} of {owner.name}, which has {owner.stored_bytes}"
        )
    return end


def _unit(t: Tensor) -> int:
    """What addresses and strides are multiples of: an element's bytes, or two where blocks hold
    16-bit scales, which is where they have an even size."""
    if t.dtype.is_quantized:
        return 2 - t.dtype.nbytes % 2
    return t.dtype.storage.itemsize


def _span(t: Tensor, end: int, memory: Memory) -> tuple[int, int]:
    """The addresses from the first byte to the end, which `check_layout` has found."""
    owner = t.owner
    buffer, offset = memory.locate(owner)
    if memory.is_packed(owner):
        if t is not owner or owner.role is not Role.WEIGHT:
            raise DescriptorError(f"operand {t.name}: a part of {owner.name}, which is repacked")
        return buffer.address, buffer.address + buffer.nbytes
    if offset < 0 or offset + owner.stored_bytes > buffer.nbytes:
        raise DescriptorError(
            f"operand {t.name}: {owner.name} has {owner.stored_bytes} bytes from {offset} on in a "
            f"buffer of {buffer.nbytes}"
        )
    address = buffer.address + offset + t.view_offset
    if end and address % _unit(t):
        if t.dtype.is_quantized:
            raise DescriptorError(f"operand {t.name}: blocks at an odd address")
        raise DescriptorError(
            f"operand {t.name}: {t.dtype.name} at an address that is no multiple of "
            f"{t.dtype.storage.itemsize}"
        )
    return address, buffer.address + offset + end if end else address


def _check_sharing(node: Tensor, spans: Sequence[tuple[int, int] | None]) -> None:
    """What the op writes lies apart from its operands, but for what it writes into and for a
    result that takes an operand's place."""
    spec = op_spec(node.op or "")
    result, *operands = spans
    written = [(None, result), *((i, operands[i]) for i in spec.also_writes if i < len(operands))]
    for k, target in written:
        for i, span in enumerate(operands):
            source = node.srcs[i]
            if i == k or source is None or span is None or target is None:
                continue
            if not (span[0] < target[1] and target[0] < span[1]):
                continue
            if k is None and (i == spec.writes_into or is_in_place(node, i)):
                continue
            alike = (source.dtype, source.shape) == (node.dtype, node.shape)
            in_place = k is None and i in spec.in_place and span == target and alike
            if not (in_place and source.is_contiguous):
                what = "its result" if k is None else f"operand {k}, which it writes,"
                raise DescriptorError(f"{what} shares memory with operand {i}, {source.name}")
