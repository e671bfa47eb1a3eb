"""What `gguflow bench --kernels` times: every kernel family and weight type, at the shapes of
Llama-3-8B and Llama-3.2-1B and, for element-wise kernels, at 2^26 elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import gguflow.engine.quants  # noqa: F401  (registers the types)
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.graph import Operand, dtype_by_name
from gguflow.engine.ops._common import FLOATS, QUANTS
from gguflow.engine.plan_key import PAGE

COMMON = ("q4_0", "q8_0", "q4_K", "f16")  # for shapes that not every type is timed at

N_VOCAB = 128_256
SIDE = 1 << 13  # of a square of 2^26 elements


@dataclass(frozen=True, eq=False)  # data of operands may be arrays, which do not compare
class KernelCase:
    """An op with operands (None for an absent optional one) and parameters.

    n_past: tokens in the context before, for ops whose cost depends on it. note: whose shape it is.
    """

    op: str
    srcs: tuple[Operand | None, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    n_past: int = 0

    @property
    def name(self) -> str:
        """`mul_mat q4_0[14336,4096] f32[1,4096] 8B ffn`: what patterns are matched with."""
        operands = (f"{s.dtype}[{','.join(map(str, s.shape))}]" for s in self.srcs if s)
        return " ".join(filter(None, (self.op, *operands, self.note)))


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that kernels see."""

    name: str
    d: int
    ff: int
    n_head: int
    n_head_kv: int
    hd: int

    @property
    def kv(self) -> int:
        return self.n_head_kv * self.hd


LARGE = Shape("8B", 4096, 14336, 32, 8, 128)
SMALL = Shape("1B", 2048, 8192, 32, 8, 64)


def all_cases() -> Iterator[KernelCase]:
    """The default set, family by family."""
    yield from products()
    yield from fused_products()
    yield from attention()
    yield from rows()
    yield from maps()
    yield from broadcasts()
    yield from movers()
    yield from reductions()
    yield from experts()
    yield from recurrent()


def weight(dtype: str, *shape: int) -> Operand:
    return Operand(shape, dtype, role="weight")


def ids(n: int, below: int) -> Operand:
    """n different row numbers, spread over a table."""
    return Operand((n,), "i32", (np.arange(n) * 977) % below)


def positions(n: int, past: int = 0) -> Operand:
    return Operand((n,), "i32", np.arange(past, past + n))


def products() -> Iterator[KernelCase]:
    """mul_mat: a token, a few columns, a prompt; the head; batches."""

    def case(t: str, n: int, k: int, m: int, note: str) -> KernelCase:
        return KernelCase("mul_mat", (weight(t, n, k), Operand((m, k))), note=note)

    for m in (1, 8, 512):
        for t in (*QUANTS, *FLOATS):
            yield case(t, LARGE.ff, LARGE.d, m, "8B ffn_up")
    for t in COMMON:
        yield case(t, LARGE.d, LARGE.d, 1, "8B attn_q")
        yield case(t, LARGE.d, LARGE.d, 64, "8B attn_q")
        yield case(t, LARGE.kv, LARGE.d, 1, "8B attn_k")
        yield case(t, SMALL.ff, SMALL.d, 1, "1B ffn_up")
        yield case(t, SMALL.ff, SMALL.d, 512, "1B ffn_up")
    for t in ("q6_K", "q8_0", "f16"):
        yield case(t, N_VOCAB, LARGE.d, 1, "8B output")
    keys = Operand((LARGE.n_head_kv, 512, LARGE.hd), "f16")
    queries = Operand((LARGE.n_head, 512, LARGE.hd))
    yield KernelCase("mul_mat", (keys, queries), note="8B KQ, broadcast heads")
    apart = Operand((LARGE.n_head, 512, LARGE.hd), permute=(1, 0, 2))
    yield KernelCase("mul_mat", (keys, apart), note="8B KQ, permuted")


def fused_products() -> Iterator[KernelCase]:
    """The products of a decoder block with what comes before or after them."""
    d, ff = LARGE.d, LARGE.ff
    norm, eps = weight("f32", d), {"eps": 1e-5}
    for t in COMMON:
        for m in (1, 512):
            x, down = Operand((m, d)), Operand((m, ff))
            pair = weight(t, ff, d), weight(t, ff, d)
            yield KernelCase("mul_mat_add", (weight(t, d, ff), down, x), note="8B ffn_down")
            yield KernelCase("mul_mat_swiglu", (*pair, x), note="8B ffn")
            if m == 1:
                yield KernelCase("norm_mul_mat_swiglu", (x, norm, *pair), eps, "8B ffn")
                yield KernelCase("mul_mat_geglu", (*pair, x), note="8B ffn")
                yield KernelCase("norm_mul_mat_geglu", (x, norm, *pair), eps, "8B ffn")
                yield KernelCase("mul_mat_gelu", (weight(t, ff, d), x), note="8B ffn_up")
                biased = weight(t, d, ff), down, weight("f32", d), x
                yield KernelCase("mul_mat_bias_add", biased, note="8B ffn_down")
                both = weight(t, d, d), Operand((m, d)), weight(t, d, ff), down, x
                yield KernelCase("mul_mat_two_add", both, note="8B attn_output and ffn_down")
        qkv = weight(t, d, d), weight(t, LARGE.kv, d), weight(t, LARGE.kv, d)
        cache = (Operand((512, LARGE.kv), "f16", role="state") for _ in "kv")
        rope = {"head_dim": LARGE.hd, "n_dims": LARGE.hd, "mode": "norm", "freq_base": 5e5}
        srcs = (Operand((1, d)), norm, *qkv, positions(1, 100), positions(1, 100), *cache)
        yield KernelCase("norm_qkv_rope", srcs, eps | rope, "8B attn")
        of_heads = (None, None, None, None, *(weight("f32", LARGE.hd) for _ in "qk"))
        yield KernelCase("norm_qkv_rope", (*srcs, *of_heads), eps | rope, "8B attn, norms of heads")
        yield KernelCase("mul_mat_joined", (Operand((1, d)), norm, *qkv), eps, "8B attn")
    for m in (1, 512):
        values = (Operand((m, n, LARGE.hd)) for n in (LARGE.n_head, LARGE.n_head_kv))
        states = (Operand((512, LARGE.kv), "f16", role="state") for _ in "kv")
        srcs = (*values, Operand((m, 1, LARGE.kv)), positions(m), positions(m), *states)
        rope = {"n_dims": LARGE.hd, "mode": "neox"}
        yield KernelCase("qkv_heads", srcs, rope, "8B")
        yield KernelCase("sigmoid_mul", (Operand((m, d)), Operand((m, d))), note="8B")
    for t in ("q6_K", "f16"):
        srcs = Operand((1, d)), norm, weight(t, N_VOCAB, d)
        yield KernelCase("norm_mul_mat", srcs, eps, "8B output")


def attention() -> Iterator[KernelCase]:
    """One token and 512 at several depths, every type of cache, a sliding window, many sequences,
    single tokens beside pieces of prompts."""

    def case(s: Shape, seqs: Sequence[tuple[int, int]], t: str = "f16", **params: Any
             ) -> KernelCase:  # fmt: skip
        """seqs: new tokens and those before; sequences with one new token come first."""
        entries = -(-max(n + past for n, past in seqs) // PAGE)
        table = np.arange(len(seqs) * entries, dtype=np.int32).reshape(len(seqs), entries)
        shape = (table.size * PAGE, s.n_head_kv, s.hd)
        cache = (Operand(shape, t, role="state") for _ in "kv")
        n, single = sum(n for n, _ in seqs), sum(n == 1 for n, _ in seqs)
        pos = np.concatenate([np.arange(past, past + m) for m, past in seqs])
        seq = np.repeat(np.arange(len(seqs)), [m for m, _ in seqs])
        srcs = (Operand((n, s.n_head, s.hd)), *cache, Operand((n,), "i32", pos),
                Operand((n,), "i32", seq), Operand(table.shape, "i32", table))  # fmt: skip
        many = f"{len(seqs)} sequences " if len(seqs) > 1 else ""
        note = f"{s.name} {many}after {seqs[-1][1]}"
        note += "".join(f" {k}={v}" for k, v in params.items())
        params = {"scale": s.hd**-0.5, "n_single": single, **params}
        # `cost_at` counts every token as one that came before the last.
        n_past = seqs[-1][1] - n + max(n - single, 1)
        return KernelCase("attention", srcs, params, note, n_past)

    for shape in (LARGE, SMALL):
        for n, past in ((1, 512), (1, 8191), (512, 0), (512, 7680)):
            yield case(shape, [(n, past)])
        yield case(shape, [(1, 255)] * 128)
    for t in ("q8_0", "bf16", "f32"):
        yield case(LARGE, [(1, 8191)], t)
        yield case(LARGE, [(512, 7680)], t)
        yield case(LARGE, [(1, 255)] * 128, t)
    yield case(LARGE, [(8, 8184)])
    yield case(LARGE, [(1, 8191)], window=4096)
    yield case(LARGE, [*[(1, 512)] * 64, *[(149, 512)] * 3])


def rows() -> Iterator[KernelCase]:
    """Kernels that take a row at a time: norms, soft_max, rope."""
    eps = {"eps": 1e-5}
    w = weight("f32", LARGE.d)
    for m in (1, 512, 16384):
        x = Operand((m, LARGE.d))
        yield KernelCase("rms_norm", (x,), eps, "8B")
        yield KernelCase("rms_norm_mul", (x, w), eps, "8B")
        yield KernelCase("rms_norm_add", (x, w, x), eps, "8B")
        yield KernelCase("layer_norm", (x, w, w), eps, "8B")
    scores, mask = Operand((LARGE.n_head, 512, 2048)), Operand((512, 2048), "f16")
    yield KernelCase("soft_max", (scores,), {"scale": 0.1}, "8B")
    yield KernelCase("soft_max", (scores, mask), {"scale": 0.1, "max_bias": 8.0}, "8B alibi")
    for n in (1, 4096):
        for mode in ("norm", "neox", "2d"):
            at = np.arange(n)
            pos = Operand((2, n), "i32", np.stack([at, at])) if mode == "2d" else positions(n)
            heads = Operand((n, LARGE.n_head, LARGE.hd))
            yield KernelCase("rope", (heads, pos), {"n_dims": LARGE.hd, "mode": mode}, f"8B {mode}")


def maps() -> Iterator[KernelCase]:
    """Element-wise kernels."""

    def square(t: str = "f32") -> Operand:
        return Operand((SIDE, SIDE), t)

    for op in ("silu", "gelu", "gelu_erf", "relu", "sigmoid", "tanh", "exp", "neg", "sqr", "sqrt",
               "abs"):  # fmt: skip
        yield KernelCase(op, (square(),))
    for op in ("silu", "gelu", "neg"):
        yield KernelCase(op, (square("f16"),))
        yield KernelCase(op, (square("bf16"),))
    for op in ("swiglu", "geglu", "reglu", "swiglu_clamped"):
        yield KernelCase(op, (square(), square()))
    yield KernelCase("swiglu", (Operand((SIDE // 2, 2 * SIDE)),), note="halves")
    yield KernelCase("scale", (square(),), {"s": 0.5, "b": 1.0})
    yield KernelCase("clamp", (square(),), {"min": -0.5, "max": 0.5})
    yield KernelCase("fatrelu", (square(),), {"cut": 0.5})


def broadcasts() -> Iterator[KernelCase]:
    """bin_bcast: equal shapes, rows, columns, one number, inner and outer dimensions."""

    def case(op: str, a: tuple[int, ...], b: tuple[int, ...], t: str = "f32", u: str = ""
             ) -> KernelCase:  # fmt: skip
        return KernelCase(op, (Operand(a, t), Operand(b, u or t)))

    square = (SIDE, SIDE)
    for t, u in (("f32", ""), ("f16", ""), ("bf16", ""), ("f32", "f16")):
        yield case("add", square, square, t, u)
    for op in ("sub", "mul", "div"):
        yield case(op, square, square)
    for b in ((SIDE,), (SIDE, 1), (1,)):
        yield case("add", square, b)
    yield case("add", square, (SIDE,), "f16")
    yield case("mul", (64, 1024, 32, 32), (1024, 1, 1))
    yield case("mul", (64, 1024, 32, 32), (64, 1, 32, 32))
    for n, inner in ((1 << 20, 64), (1 << 20, 63), (1 << 22, 16)):
        yield case("add", (n, inner), (inner,))
    yield case("add", (1 << 24, 4), (1 << 24, 1))
    yield case("div", (8, 1 << 20, 8), (1 << 20, 1))
    yield case("add", square, (SIDE // 4, SIDE // 2))  # repeated, not broadcast


def movers() -> Iterator[KernelCase]:
    """Copies, conversions, joining, repeating, rows by number."""
    x = Operand((SIDE, LARGE.d))
    yield KernelCase("cpy", (Operand((SIDE, SIDE)),), {"type": 0}, "to f32")
    for t in ("f16", "bf16", *QUANTS):
        yield KernelCase("cpy", (x,), {"type": dtype_by_name(t).ggml_id}, f"to {t}")
    yield KernelCase("cpy", (Operand((SIDE, SIDE), "f16"),), {"type": 0}, "to f32")
    yield KernelCase("cont", (Operand((SIDE, SIDE), permute=(1, 0)),), note="transposed")
    heads = Operand((LARGE.n_head, 2048, LARGE.hd), permute=(1, 0, 2))
    yield KernelCase("cont", (heads,), note="8B heads")
    for axis in (-1, -2):
        yield KernelCase("concat", (x, x), {"axis": axis}, f"axis {axis}")
    yield KernelCase("repeat", (x,), {"r1": 2})
    for t in ("f32", "f16", *QUANTS):
        yield KernelCase("get_rows", (weight(t, 32_000, LARGE.d), ids(512, 32_000)), note="8B")
    for t in ("f16", "q8_0"):
        cache = Operand((8192, LARGE.kv), t, role="state")
        fresh = Operand((512, LARGE.kv)), ids(512, 8192)
        yield KernelCase("set_rows", (cache, *fresh), note="8B cache")


def reductions() -> Iterator[KernelCase]:
    """Reductions over both dimensions, top-k and sampling over a vocabulary."""
    for op in ("sum", "mean", "max", "argmax"):
        for axis in (-1, -2):
            square = Operand((SIDE, SIDE))
            yield KernelCase(op, (square,), {"axis": axis}, f"axis {axis}")
    logits = Operand((1, N_VOCAB))
    yield KernelCase("argmax", (logits,), {"axis": -1}, "8B logits")
    yield KernelCase("top_k", (logits,), {"k": 40}, "8B logits")
    samplers = (("greedy", (0, 40, 0.95, 0.05)), ("8B logits", (0.8, 40, 0.95, 0.05)))
    for n in (1, 128):
        history = Operand((n, 64), "i32", np.arange(64))
        rng = Operand((n, 2), "i64", np.array([1, 2]))
        for note, values in samplers:
            settings = Operand((n, 8), "f32", np.array([*values, 1.1, 64, 0, 0], np.float32))
            srcs = (Operand((n, N_VOCAB)), settings, rng, history)
            yield KernelCase("sample", srcs, note=note)


def experts() -> Iterator[KernelCase]:
    """The layers of Qwen3-30B-A3B: 128 experts of 768 neurons, eight for a token."""
    n, used, d, ff = 128, 8, 2048, 768
    for m in (1, 8, 512):
        chosen = Operand((m, used), "i32", np.arange(m * used).reshape(m, used) * 37 % n)
        logits = Operand((m, n))
        route = {"n_used": used, "score": "softmax"}
        yield KernelCase("route", (logits,), route, "30B-A3B")
        yield KernelCase("route_weights", (logits, chosen), {"score": "softmax"}, "30B-A3B")
        table = Operand((n,), "i32", np.arange(n))
        yield KernelCase("map_ids", (chosen, table), note="30B-A3B")
        yield KernelCase("moe_sum", (Operand((m, used, d)), Operand((m, used))), note="30B-A3B")
        for t in COMMON:
            srcs = weight(t, n, ff, d), Operand((m, d)), chosen
            yield KernelCase("mul_mat_id", srcs, note="30B-A3B up")
            if m * used <= 64:
                both = weight(t, n, ff, d), weight(t, n, ff, d), Operand((m, d)), chosen
                yield KernelCase("mul_mat_id_glu", both, {"act": "swiglu"}, "30B-A3B")
            srcs = weight(t, n, d, ff), Operand((m, used, ff)), chosen
            yield KernelCase("mul_mat_id", srcs, note="30B-A3B down")
            shares = Operand((m, used))
            whole = *srcs, shares, None, Operand((m, d))
            yield KernelCase("mul_mat_id_sum", whole, note="30B-A3B")


def recurrent() -> Iterator[KernelCase]:
    """Gated delta nets of Qwen3-Next, scans of Mamba 2 2.7B: a token, a prompt, many sequences."""
    n_k, n_v, hd, channels = 16, 32, 128, 8192
    heads, width, n_state = 80, 64, 128

    def vector(n: int) -> Operand:
        return Operand((n,), "f32", -0.1, role="weight")

    for n, seqs in ((1, 1), (512, 1), (64, 64)):
        each = n // seqs
        pos = Operand((n,), "i32", np.tile(np.arange(each) + 5, seqs))
        slot = Operand((n,), "i32", np.repeat(np.arange(seqs), each))
        note = f"{n} tokens of {seqs}"

        def state(width: int, seqs: int = seqs) -> Operand:
            return Operand((seqs, width), role="state")

        srcs = Operand((n, channels)), weight("f32", channels, 4), state(3 * channels), pos, slot
        yield KernelCase("ssm_conv", srcs, note=note)
        gates = Operand((n, n_v)), Operand((n, n_v)), vector(n_v), vector(n_v)
        delta = Operand((n, channels)), *gates, state(n_v * hd * hd), pos, slot
        yield KernelCase("gated_delta", delta, {"n_head_k": n_k, "dk": hd}, note)
        mixed = Operand((n, heads * width + 2 * n_state)), Operand((n, heads))
        memory = state(heads * width * n_state)
        scan = (*mixed, vector(heads), vector(heads), vector(heads), memory, pos, slot)
        yield KernelCase("ssm_scan", scan, {"n_state": n_state}, note)
