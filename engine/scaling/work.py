"""What a plan asks of a machine: by layer and device, the bytes, operations and exchanges."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from gguflow.engine.compile import Plan, Recv
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import (
    OpSpec,
    Role,
    Tensor,
    exchanged,
    exchanged_by_rank,
    is_in_place,
    op_spec,
)

_LAYER = re.compile(r"(?:blk|kv|ssm)\.(\d+)\.")
FIRST, LAST = -1, 1 << 30  # what comes before the layers, what after them
FEW = 16  # rows that a product takes as they are; more are rounded first, and parts of sums added
# Rows up to which that is hidden with 16-bit weights: MOST of kernels/cuda/mul_mat_tma.py.
FEW_OF_FLOATS = 128
# Rows that kernels of ours take, which unpack weights as they multiply; for more a library finds
# them unpacked: MOST and _MOST_OF of kernels/cuda/mul_mat_batch.py, which forecasts do not import.
MANY = 256
MANY_OF = {"q4_0": 512}


@dataclass
class Work:
    """Of one device in one layer.

    read: bytes moved. flops: operations by the kind of the weights: "f32", "f16", "quant".
    unpacked: quantized weights whose unpacking takes a time of its own. kernels: ops that read
    weights or a cache; many: of these, products of more rows than cost nothing of their own; small:
    all others.
    exchanges: sums between all devices, by bytes of a part. shared: those whose rows the devices
    share out, by the bytes that come to a device. crossed: bytes of each time that the device waits
    for what another one alone has made. written: bytes of results that it writes into another's
    memory while it computes them.
    """

    read: int = 0
    flops: Counter[str] = field(default_factory=Counter)
    unpacked: int = 0
    kernels: int = 0
    many: int = 0
    small: int = 0
    exchanges: Counter[int] = field(default_factory=Counter)
    shared: Counter[int] = field(default_factory=Counter)
    crossed: list[int] = field(default_factory=list)
    written: int = 0


@dataclass(frozen=True)
class RunWork:
    """Of a run. layers: what comes before them, each of them, what comes after; each by device.
    crossing: bytes between two layers. n_devices: which share every layer."""

    layers: tuple[tuple[Work, ...], ...]
    crossing: int
    n_devices: int


def run_work(plan: Plan, names: list[str], n_layer: int, n_past: int, crossing: int) -> RunWork:
    """What the devices `names` do in a run whose first token is at position n_past."""
    layers = [tuple(Work() for _ in names) for _ in range(n_layer + 2)]
    at = {name: k for k, name in enumerate(names)}
    for node in plan.nodes:
        if node.op is not None:
            i = min(max(layer_of(node) + 1, 0), n_layer + 1)
            _add(layers[i][at[plan.placement.of[node]]], node, n_past)
    for step in plan.steps:
        if isinstance(step, Recv):
            i = min(max(layer_of(step.meeting.before) + 1, 0), n_layer + 1)
            m = step.meeting
            layers[i][at[m.target]].crossed.append(sum(o.nbytes for o in m.owners))
            layers[i][at[m.source]].written += sum(t.nbytes for t in m.written)
    return RunWork(tuple(layers), crossing, len(names))


def layer_of(node: Tensor) -> int:
    """The layer of a node by its name: FIRST for the looked-up embeddings and what else needs no
    layer, LAST for the output head and the sampler."""
    found = _LAYER.match(node.name)
    if found:
        return int(found[1])
    return LAST if re.match(r"output|logits|sampl|out\.", node.name) else FIRST


def _add(work: Work, node: Tensor, n_past: int) -> None:
    if exchanged(node):
        if len(exchanged_by_rank(node)[0]) > 1:
            work.shared[_arriving(node)] += 1
        else:
            work.exchanges[node.nbytes] += 1
        return
    if node.srcs and all(is_in_place(node, i) for i in range(len(node.srcs))):
        return  # it joins what lies where it belongs
    spec = op_spec(node.op or "")
    nbytes, flops = spec.cost_at(node, n_past)
    work.read += nbytes
    work.flops[_kind(node)] += flops
    work.unpacked += sum(w.size for w in _unpacked(node, spec))
    if spec.weights or (spec.writes_into is None and _reads_state(node)):
        work.kernels += 1
        few = FEW_OF_FLOATS if _kind(node) == "f16" else FEW
        work.many += bool(spec.weights) and node.shape[0] > few
    else:
        work.small += 1


def _arriving(node: Tensor) -> int:
    """Bytes that come to a device of a sum whose rows are shared out: of its own rows the others'
    parts, of theirs the norms, of 16 bits, or without any the sums."""
    rows = [r.shape[0] for r, _ in exchanged_by_rank(node)]
    own, d = rows[node.params["rank"]], node.shape[1]
    width = 4 if node.srcs[0] is None else 2
    return 4 * d * own * (len(rows) - 1) + width * d * (sum(rows) - own)


def _kind(node: Tensor) -> str:
    types = [s.dtype for s in node.live_srcs()]
    if any(t.is_quantized for t in types):
        return "quant"
    return "f16" if any(t.nbytes == 2 for t in types) else "f32"


def _reads_state(node: Tensor) -> bool:
    return any(s.owner.role is Role.STATE for s in node.live_srcs())


def _unpacked(node: Tensor, spec: OpSpec) -> Iterator[Tensor]:
    """Quantized matrices that an op multiplies with a few rows, where all of the work on a weight
    is seen beside its reading, or with more than MANY, for which they are unpacked into memory."""
    n = node.shape[0]
    for i in spec.weights:
        w = node.srcs[i] if i < len(node.srcs) else None
        if w is None or not w.dtype.is_quantized:
            continue
        if 1 < n <= FEW or n > MANY_OF.get(w.dtype.name, MANY):
            yield w
