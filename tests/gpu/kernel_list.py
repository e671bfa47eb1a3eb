"""Every kernel that the cases of the op specifications launch, without running anything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

from harness import declare_case

from gguflow.engine.graph import (
    F16,
    F32,
    I32,
    Case,
    Graph,
    OpSpec,
    Role,
    Tensor,
    all_ops,
    dtype_by_name,
    op_spec,
)
from gguflow.engine.graph import Operand as CaseOperand
from gguflow.kernels.cuda import all_reduce, all_reduce_norm, link
from gguflow.kernels.cuda.accept import RoundPlaces, accept
from gguflow.kernels.cuda.advance import CacheRows, StepInputs, advance
from gguflow.kernels.cuda.compact import ALONG, EIGHTS, FRAGMENTS, compact_launch, layouts_of
from gguflow.kernels.cuda.draft import draft_first, draft_next
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import (
    Call,
    CompactForm,
    DeviceInfo,
    Kernel,
    Launch,
    Operand,
    Rounded,
    RoundedNorm,
    joined,
    launches,
    supports,
)
from gguflow.kernels.cuda.mirror import mirror
from gguflow.kernels.cuda.peaks import f32_peak, int8_peak, read_peak
from gguflow.kernels.cuda.timestamp import timestamp

DEVICE = DeviceInfo()
EQUAL = DeviceInfo(equal_bits=True)  # one column has the bits that it has among several
MANY = replace(EQUAL, one_class=True)  # and many are to be fast


def launches_of(
    node: Tensor, address: int = 1 << 20, device: DeviceInfo = DEVICE
) -> list[Launch | Gemm]:
    """The launches of a node whose operands lie at made-up aligned addresses."""
    srcs = tuple(
        None if s is None else Operand.of(s, address * (i + 2) + s.view_offset)
        for i, s in enumerate(node.srcs)
    )
    return list(launches(Call(node, Operand.of(node, address), srcs, device, scratch=1 << 30)))


def calls_of(g: Graph, places: Mapping[str, int] = {}) -> list[Call]:  # noqa: B006
    """The calls of a graph's nodes, whose values lie apart or at `places`."""
    at = {t.name: (i + 1) << 30 for i, t in enumerate((*g.leaves.values(), *g.nodes))}

    def operand(t: Tensor) -> Operand:
        return Operand.of(t, places.get(t.owner.name, at[t.owner.name]) + t.view_offset)

    return [
        Call(n, operand(n), tuple(None if s is None else operand(s) for s in n.srcs), DEVICE)
        for n in g.nodes
    ]


def routers() -> Iterator[Launch]:
    """What several ops are together."""
    for dtype in ("f32", "f16", "bf16"):
        g = Graph()
        x = g.rms_norm_mul(g.input("x", F32, (1, 256)), g.weight("norm", F32, (256,)), eps=1e-5)
        logits = g.mul_mat(g.weight("w", dtype_by_name(dtype), (32, 256)), x)
        ids = g.route(logits, n_used=4, score="softmax")
        g.route_weights(logits, ids, score="softmax")
        calls = calls_of(g)
        for first in (0, 2):
            found = joined(calls[first:])
            assert found is not None
            yield from (launch for op in found for launch in op)


def weight_of(g: Graph, name: str, n: int, k: int, dtype: str) -> Tensor:
    """A weight whose rows begin at multiples of 16 bytes, whatever their length."""
    t, whole = dtype_by_name(dtype), k
    while t.row_bytes(whole) % 16:
        whole += t.block
    w = g.weight(name, t, (n, whole))
    return w if whole == k else g.slice(w, 1, 0, k)


def parallel_graph(
    m: int = 1,
    k: int = 576,
    n_ff: int = 130,
    heads: int = 3,
    types: tuple[str, str] = ("q4_0", "q4_0"),
    *,
    up: str = "",
    erf: int = 1,
    bias: bool = True,
    state: str = "f16",
    mode: str = "neox",
    layers: int = 0,
) -> Graph:
    """What a layer begins with: a LayerNorm, the first half of a feed-forward layer, and heads of
    64. types: of the weights and of that of the values; up: of that of the feed-forward layer.
    layers: whole ones, one after the other, instead."""
    g = Graph()
    x = g.input("x", F32, (m, k))
    where = g.input("pos", I32, (m,)), g.input("rows", I32, (m,))
    params = {"eps": 1e-5, "head_dim": 64, "n_dims": 64, "mode": mode}
    for i in range(max(layers, 1)):
        end = str(i) if layers else ""

        def weight(name: str, n: int, k: int, t: str = types[0], end: str = end) -> Tensor:
            return weight_of(g, f"w_{name}{end}", n, k, t)

        b = g.weight(f"norm_bias{end}", F32, (k,)) if bias else None
        h = g.layer_norm(x, g.weight(f"norm{end}", F32, (k,)), b, eps=1e-5, name=f"h{end}")
        act = g.mul_mat_gelu(weight("up", n_ff, k, up or types[0]), h, erf=erf, name=f"act{end}")
        qkv = weight("q", 64 * heads, k), weight("k", 64, k), weight("v", 64, k, types[1])
        states = [g.state(f"{n}_state{end}", dtype_by_name(state), (64, 64)) for n in "kv"]
        q = g.op("norm_qkv_rope", h, None, *qkv, *where, *states, name=f"q{end}", **params)
        if not layers:
            return g
        keys, values = (g.reshape(s, (64, 1, 64)) for s in states)
        of_seq = g.input("seq", I32, (m,)), g.input("table", I32, (1, 1))
        a = g.attention(q, keys, values, where[0], *of_seq, scale=0.125, n_single=m, name=f"a{end}")
        a = g.reshape(a, (m, 64 * heads))
        out, down = weight("out", k, 64 * heads), weight("down", k, n_ff)
        x = g.mul_mat_two_add(out, a, down, act, x, name=f"x{end}")
    return g


def parallel_layers() -> Iterator[Launch]:
    """What ops of layers whose parts stand side by side are together: what such a layer begins
    with, and attention with what ends it."""
    for types in (("q4_0",) * 2, ("q8_0",) * 2, ("q4_K", "q6_K"), ("f16",) * 2):
        for erf in (0, 1):
            calls = calls_of(parallel_graph(1, 512, 512, 8, types, erf=erf, layers=1))
            for first, n in ((0, 3), (3, 2)):
                found = joined(calls[first:])
                assert found is not None and len(found) == n
                yield from (launch for op in found for launch in op)


def few_rows_graph(
    m: int = 4,
    types: tuple[str, str] = ("q4_0", "q4_0"),
    *,
    heads: tuple[int, int] = (32, 8),
    head_dim: int = 128,
    n_ff: int = 1024,
    pages: int = 8,
    factors: bool = False,
    norm: bool = True,
) -> Graph:
    """A layer from attention on, of m generated tokens of one sequence, and the next layer's
    queries, keys and values. types: of the weights and of the values'."""
    g, (n_head, n_kv) = Graph(), heads
    k = n_head * head_dim
    where = [g.input(name, I32, (m,)) for name in ("pos", "rows", "seq")]
    table = g.input("table", I32, (1, pages))

    def weight(name: str, n: int, k: int = k, t: str = types[0]) -> Tensor:
        return g.weight(name, dtype_by_name(t), (n, k))

    def states(name: str) -> list[Tensor]:
        return [g.state(f"{n}_{name}", F16, (64 * pages, n_kv * head_dim)) for n in "kv"]

    cache = [g.reshape(s, (64 * pages, n_kv, head_dim)) for s in states("state")]
    q = g.input("q", F32, (m, n_head, head_dim))
    a = g.attention(q, *cache, where[0], where[2], table, scale=0.09, n_single=m, name="a")
    x = g.mul_mat_add(
        weight("output", k), g.reshape(a, (m, k)), g.input("r", F32, (m, k)), name="x"
    )
    weights = weight("gate", n_ff), weight("up", n_ff)
    if norm:
        ff = g.op("norm_mul_mat_swiglu", x, g.weight("ffn_norm", F32, (k,)), *weights,
                  eps=1e-5, name="ff")  # fmt: skip
    else:
        ff = g.mul_mat_swiglu(*weights, x, name="ff")
    y = g.mul_mat_add(weight("down", k, n_ff), ff, x, name="y")
    rows = n_kv * head_dim
    qkv = weight("wq", k), weight("wk", rows), weight("wv", rows, k, types[1])
    others = [g.input("factors", F32, (head_dim // 2,))] if factors else []
    srcs = y, g.weight("attn_norm", F32, (k,)), *qkv, *where[:2], *states("next"), *others
    g.op("norm_qkv_rope", *srcs, eps=1e-5, head_dim=head_dim, n_dims=head_dim, mode="neox",
         name="heads")  # fmt: skip
    return g


def with_fragments(calls: Sequence[Call], device: DeviceInfo, scratch: int = 1 << 44) -> list[Call]:
    """The calls on a device where quantized weights lie as fragments too."""

    def lying(t: Tensor | None, o: Operand | None) -> Operand | None:
        if t is None or o is None or t.owner.role is not Role.WEIGHT or not t.dtype.is_quantized:
            return o
        form = CompactForm(o.address + (1 << 40), FRAGMENTS.name)
        return replace(o, compact=form if layouts_of(t.dtype) else None)

    return [
        replace(c, device=device, scratch=scratch,
                srcs=tuple(map(lying, c.node.srcs, c.srcs)))
        for c in calls
    ]  # fmt: skip


def few_rows() -> Iterator[Launch]:
    """What leaves its results rounded for the product behind it."""
    for m in (4, 16):
        for dtype in ("q4_0", "q5_K"):
            calls = with_fragments(calls_of(few_rows_graph(m, (dtype, dtype))), MANY)
            for first in (0, 2):
                found = joined(calls[first:])
                assert found is not None and len(found) == 2
                yield from (launch for op in found for launch in op)
    for m in (2, 8):
        for dtype in ("q4_0", "q4_K", "q2_K"):
            calls = calls_of(few_rows_graph(m, (dtype, dtype)))
            for first, n in ((0, 3), (3, 2)):
                found = joined(calls[first:])
                assert found is not None and len(found) == n
                yield from (launch for op in found for launch in op)


def chunks() -> Iterator[Launch]:
    """Rows of prompts, apart from generated tokens, with quantized weights."""
    w = CaseOperand((8, 512), "q4_K", 0.0, role="weight")
    for op, weights in (("mul_mat", (w,)), ("mul_mat_swiglu", (w, w))):
        for m in (1, 300):
            node = declare_case(op_spec(op), Case((*weights, CaseOperand((m, 512), data=0.0))))
            node.n_single = 0
            yield from _equal_bits(node)


def many_columns() -> Iterator[Launch]:
    """Products of 16-bit weights where bits are to be equal, of k in parts, of pairs of rows too,
    and what surrounds a library's: of large matrices, and of rows that are no whole 64 elements."""

    def zeros(*shape: int, dtype: str = "f32", role: str = "input") -> CaseOperand:
        return CaseOperand(shape, dtype, 0.0, role=role)

    for dtype, n, m in product(("f16", "bf16"), (1024, 2048, 4096), (257, 384, 448, 512)):
        w, x = zeros(n, 14_336, dtype=dtype, role="weight"), zeros(m, 14_336)
        yield from _equal_bits(declare_case(op_spec("mul_mat"), Case((w, x))))
    w, x = zeros(14_336, 4096, dtype="f16", role="weight"), zeros(400, 4096)
    yield from _equal_bits(declare_case(op_spec("mul_mat_swiglu"), Case((w, w, x))))
    for dtype, m in product(("f16", "bf16"), (128, 512)):
        w, x = zeros(3072, 1024, dtype=dtype, role="weight"), zeros(m, 1024)
        yield from _equal_bits(declare_case(op_spec("mul_mat_swiglu"), Case((w, w, x))))
    for dtype, rows, k, m in (
        ("f16", (128, 64, 64), 544, 20),
        ("f16", (2048, 512, 512), 2048, 300),
        ("bf16", (2048, 512, 512), 2048, 600),
    ):
        weights = (zeros(n, k, dtype=dtype, role="weight") for n in rows)
        states = (zeros(64, n, dtype="f16", role="state") for n in rows[1:])
        where = (zeros(m, dtype="i32") for _ in range(2))
        srcs = zeros(m, k), zeros(k, role="weight"), *weights, *where, *states
        params = {"eps": 1e-5, "n_dims": 64, "head_dim": 64, "mode": "norm"}
        yield from _equal_bits(declare_case(op_spec("norm_qkv_rope"), Case(srcs, params)))


def compact() -> Iterator[Launch]:
    """What makes the compact form of weights, or fragments of them, and products with it."""
    floats = (DEVICE, EQUAL), ("f16", "bf16"), (1,)
    quantized = (MANY,), ("q4_0", "q5_K", "q6_K"), (1, 4, 16, 32, 64, 128)
    for layout, devices, dtypes, columns in (
        (EIGHTS, *floats), (ALONG, *floats), (FRAGMENTS, *quantized)
    ):  # fmt: skip
        form = CompactForm(1 << 40, layout.name)
        for dtype, m in product(dtypes, columns):
            w = CaseOperand((4096, 4096), dtype, 0.0, role="weight")
            x, norm = CaseOperand((m, 4096), data=0.0), CaseOperand((4096,), data=0.0)
            cases = ("mul_mat", (w, x)), ("norm_mul_mat_swiglu", (x, norm, w, w))
            for op, srcs in cases:
                params = {"eps": 1e-5} if op.startswith("norm_") else {}
                node = declare_case(op_spec(op), Case(srcs, params))
                if m == 1:
                    yield compact_launch(Operand.of(node.srcs[-1 if params else 0], 0), form, 0)
                at = [None if s is None else Operand.of(s, (i + 2) << 32)
                      for i, s in enumerate(node.srcs)]  # fmt: skip
                at = [o and replace(o, compact=form) for o in at]
                for device in devices:
                    call = Call(node, Operand.of(node, 1 << 32), tuple(at), device, 9 << 32)
                    yield from (s for s in launches(call) if isinstance(s, Launch))


def _equal_bits(node: Tensor) -> Iterator[Launch]:
    yield from (x for x in launches_of(node, device=EQUAL) if isinstance(x, Launch))


@cache
def launches_of_cases(spec: OpSpec, device: DeviceInfo = DEVICE) -> tuple[Launch, ...]:
    nodes = [declare_case(spec, case) for case in spec.cases()]
    taken = [n for n in nodes if supports(n, device.equal_bits)]
    made = (x for n in taken for x in launches_of(n, device=device))
    return tuple(x for x in made if isinstance(x, Launch))


def kernels_of(spec: OpSpec) -> tuple[Kernel, ...]:
    return tuple(x.kernel for x in launches_of_cases(spec))


@cache
def all_launches() -> tuple[Launch, ...]:
    """Those of the cases, with `equal_bits` too, and those that belong to no op."""
    of_cases = dict.fromkeys(x for d in (DEVICE, EQUAL) for s in all_ops()
                             for x in launches_of_cases(s, d))  # fmt: skip
    linked = link.idle(link.SIGNAL), link.idle(link.WAIT)
    sizes = 4096, 8 << 20
    reduced = [all_reduce.exchange(0, 0, 256, n, 0, (0, 0), sizes, False, 0, 1, 1) for n in sizes]
    norms = (RoundedNorm(0, 1e-5, d, Rounded(t, 0, 0))
             for t in ("f16", "bf16") for d in (2048, 4096, 8192))  # fmt: skip
    rounded = (all_reduce.exchange(0, 0, 256, 8 << 20, 0, (0, 0), sizes, False, 0, 1, 1, norm)
               for norm in norms)  # fmt: skip
    sides = all_reduce_norm.Sides((0, 0), (), ((150, 1 << 15),), False, 0, 1, 1)
    reduced = *reduced, *rounded, *(
        all_reduce_norm.exchange(0, 0, 0, 0, 1e-5, d, (150, 150), 0, dtype, sides)
        for d in (1024, 2048, 4096, 8192) for dtype in ("f32", "f16", "bf16")
    )  # fmt: skip
    inputs = StepInputs(1, 0, 0, 0, 0, 0, 0, 1, 1, [CacheRows(0, 0, 1)])
    places = RoundPlaces(0, 0, 0, 1)
    drafts = draft_first(inputs, inputs, places), draft_next(0, 2, inputs, inputs, places)
    steps = advance(inputs, 0, 0, 64), accept(inputs, places, 0, 0, 64), *drafts
    others = timestamp(0), *steps, *mirror([(0, 0, 64)]), *linked, *reduced, *routers()
    others = *others, *parallel_layers(), *few_rows(), *chunks(), *many_columns(), *compact()
    peaks = read_peak(0, 16, 0, DEVICE), f32_peak(1, 0, DEVICE)[0], int8_peak(1, 0, DEVICE)[0]
    found = (*of_cases, *others, *peaks)
    return (*found, *(x.roomy for x in found if x.roomy is not None))


@cache
def entries_by_source() -> dict[str, list[str]]:
    """Source file -> its entries, sorted."""
    found: dict[str, set[str]] = {}
    for kernel in (x.kernel for x in all_launches()):
        found.setdefault(kernel.source, set()).add(kernel.entry)
    return {source: sorted(entries) for source, entries in found.items()}


def few_of(entries: list[str], most: int | None = None) -> list[str]:
    """Of a source's entries so many that each function is there with each value of each of its
    template's arguments. most: no more than that, each function before any value of an argument."""
    left = {e: _arguments(e) for e in entries}
    wanted, few = set[tuple[str, int, str]]().union(*left.values()), []
    functions = {_function(e) for e in entries}
    while wanted and (most is None or len(few) < most):
        few.append(max(left, key=lambda e: (_function(e) in functions, len(wanted & left[e]))))
        wanted -= left.pop(few[-1])
        functions.discard(_function(few[-1]))
    return sorted(few)


@cache
def few_by_source(most: int) -> dict[str, list[str]]:
    """Of every source so many (`few_of`), and what else it takes that every name that an entry has
    anywhere (functions, types, choices) is in some source's entries."""
    every = entries_by_source()
    found = {source: few_of(entries, most) for source, entries in every.items()}
    missing = names_in(every) - names_in(found)
    while missing:
        places = ((s, e) for s, entries in every.items() for e in entries)
        source, entry = max(places, key=lambda place: len(missing & names_in({"": [place[1]]})))
        found[source].append(entry)
        missing -= names_in({"": [entry]})
    return found


def names_in(entries: Mapping[str, list[str]]) -> set[str]:
    return {w for es in entries.values() for e in es for w in re.findall(r"[A-Za-z_]\w*", e)}


def _function(entry: str) -> str:
    return entry.partition("<")[0]


def _arguments(entry: str) -> set[tuple[str, int, str]]:
    """Function, place and value of each."""
    name, _, rest = entry.partition("<")
    values, depth = [""], 0
    for c in rest.removesuffix(">"):
        depth += (c == "<") - (c == ">")
        if c == "," and depth == 0:
            values.append("")
        else:
            values[-1] += c
    return {(name, i, v.strip()) for i, v in enumerate(values)}
