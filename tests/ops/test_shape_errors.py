"""Operands that do not fit: the error names the op, the graph name and every shape."""

from __future__ import annotations

from typing import Any

import pytest

import gguflow.engine.ops
import gguflow.engine.quants  # noqa: F401  (registers the quantized types)
from gguflow.engine.graph import Graph, ShapeError, Tensor, all_ops, dtype_by_name


def operand(g: Graph, i: int, text: str | None) -> Tensor | None:
    """`f32 3x4` as an input; a trailing `T` swaps the last two dimensions."""
    if text is None:
        return None
    dtype, _, dims = text.partition(" ")
    shape = tuple(int(n) for n in dims.rstrip("T").split("x"))
    t = g.input(f"in{i}", dtype_by_name(dtype), shape)
    return g.transpose(t) if dims.endswith("T") else t


EPS = {"eps": 1e-5}
NORM = {"n_dims": 4, "mode": "norm"}
SCALE = {"scale": 1.0}
POS = ["i32 2", "i32 2", "i32 1x1"]  # pos, seq and table of attention
QKV = ["f32 2x4", "f32 4", "f32 8x4", "f32 4x4", "f32 4x4", "i32 2", "i32 2", "f32 9x4", "f32 9x4"]
KV = ["f32 2x4x8", "f32 64x2x8", "f32 64x2x8"]
ROUTE = {"score": "softmax", "n_used": 2}
STATE: list[str | None] = ["f32 5x8", "i32 2", "i32 2"]
DELTA = {"n_head_k": 1, "dk": 2}
GATES: list[str | None] = ["f32 2x1", "f32 2x1", "f32 1", "f32 1"]
SCAN: list[str | None] = ["f32 2x1", "f32 1", "f32 1", "f32 1"]
HEADS: list[str | None] = ["f32 2x2x4", "f32 2x1x4", "f32 2x2x2", "i32 2", "i32 2", "f32 9x4",
                          "f32 9x4"]  # fmt: skip
HEAD_PARAMS = {**NORM}
TWO: list[str | None] = ["f32 5x4", "f32 3x4", "f32 5x6", "f32 3x6", "f32 3x5"]
RANK = {"rank": 0}
HALVES: list[str | None] = ["f32 1x8", "f32 2x8", "f32 1x8", "f32 2x8"]
QKV_PARAMS = {**EPS, **NORM, "head_dim": 4}
WRONG: list[tuple[str, list[str | None], dict[str, Any], str]] = [
    ("get_rows", ["f32 3x4x5", "i32 2"], {}, "the table must be [n, d]"),
    ("get_rows", ["i32 3x4", "i32 2"], {}, "the table must be"),
    ("get_rows", ["f32 3x4T", "i32 2"], {}, "rows dense"),
    ("get_rows", ["f32 3x4", "i32 2x2"], {}, "ids must be dense i32 [m]"),
    ("get_rows", ["f32 3x4", "f32 2"], {}, "ids must be dense i32 [m]"),
    ("set_rows", ["i32 3x4", "f32 2x4", "i32 2"], {}, "the state must be"),
    ("set_rows", ["f32 3x4", "f32 2x5", "i32 2"], {}, "x must be f32 [m, d]"),
    ("set_rows", ["f16 3x4", "f16 2x4", "i32 2"], {}, "x must be f32 [m, d]"),
    ("set_rows", ["f32 3x4", "f32 2x4", "i32 3"], {}, "ids must be i32 [m]"),
    ("set_rows", ["f32 3x4", "f32 4x2T", "i32 2"], {}, "rows must be dense"),
    ("add", ["f32 3x4", "f32 3x3"], {}, "does not repeat"),
    ("mul", ["f32 4", "f32 2x4"], {}, "does not repeat"),
    ("sub", ["f32 4", "f32 0"], {}, "does not repeat"),
    ("div", ["f32 4", "i32 4"], {}, "f32, f16 or bf16"),
    ("silu", ["i32 4"], {}, "f32, f16 or bf16"),
    ("swiglu", ["f32 3x4", "f32 3x5"], {}, "one shape"),
    ("geglu", ["f32 3x5"], {}, "is even"),
    ("reglu", ["f16 3x4"], {}, "must be f32"),
    ("swiglu", ["f32 4x3T", "f32 3x4"], {}, "dense"),
    ("rms_norm", ["f16 3x4"], EPS, "x must be f32"),
    ("rms_norm", ["f32 3x4T"], EPS, "dense rows"),
    ("rms_norm_mul", ["f32 3x4", "f32 3"], EPS, "w must be dense f32 [d]"),
    ("rms_norm_mul", ["f32 3x4T", "f32 3"], EPS, "dense rows"),
    ("rms_norm_add", ["f32 3x4", "f32 3", "f32 3x4"], EPS, "w must be [d]"),
    ("rms_norm_add", ["f32 3x4", "f32 4", "f32 4"], EPS, "r of x's shape"),
    ("rms_norm_add", ["f32 3x4", "f32 4", "f32 4x3T"], EPS, "dense rows"),
    ("norm_mul_mat", ["f32 3x4", "f32 3", "f32 2x4"], EPS, "norm must be f32 [k]"),
    ("norm_mul_mat_swiglu", ["f32 3x4", "f32 4", "f32 2x4", "f32 3x4"], EPS, "one shape"),
    ("norm_qkv_rope", [*QKV[:2], "f32 6x4", *QKV[3:]], QKV_PARAMS, "heads of 4"),
    ("norm_qkv_rope", [*QKV[:5], "i32 3", *QKV[6:]], QKV_PARAMS, "pos must be i32 [m]"),
    ("norm_qkv_rope", [*QKV[:6], "i32 3", *QKV[7:]], QKV_PARAMS, "rows must be i32 [m]"),
    ("norm_qkv_rope", [*QKV[:7], "f32 9x3", *QKV[8:]], QKV_PARAMS, "a state must be"),
    ("norm_qkv_rope", [*QKV, None, "f32 4"], QKV_PARAMS, "q_bias must be f32 [8]"),
    ("norm_qkv_rope", [*QKV, "f32 1"], QKV_PARAMS, "freq_factors must be f32 [2]"),
    ("norm_qkv_rope", [*QKV, *[None] * 4, "f32 8"], QKV_PARAMS, "q_norm must be f32 [4]"),
    ("norm_qkv_rope", QKV, {**QKV_PARAMS, "n_dims": 6}, "n_dims=6"),
    ("qkv_heads", ["f32 2x2x4", "f32 2x1x6", *HEADS[2:]], HEAD_PARAMS, "of one length"),
    ("qkv_heads", [*HEADS[:3], "i32 3", *HEADS[4:]], HEAD_PARAMS, "pos and rows must be i32 [m]"),
    ("qkv_heads", [*HEADS[:6], "f32 9x3"], HEAD_PARAMS, "a state must be"),
    ("qkv_heads", ["f32 2x2x4", "f32 3x1x4", *HEADS[2:]], HEAD_PARAMS, "a row a token"),
    ("qkv_heads", [*HEADS, None, None, "f32 8"], HEAD_PARAMS, "k_bias must be f32 [4]"),
    ("sigmoid_mul", ["f32 2x8", "f32 2x4"], {}, "of one shape"),
    ("mul_mat_joined", ["f32 2x4", "f32 3", "f32 3x4", "f32 5x4"], EPS, "norm must be f32 [k]"),
    ("mul_mat_joined", ["f32 2x4", None, "f32 3x4", "f32 5x6"], {}, "differ"),
    ("norm_mul_mat_geglu", ["f32 3x4", "f32 4", "f32 2x4", "f32 3x4"], EPS, "one shape"),
    ("layer_norm", ["f32 3x4", "f32 3"], EPS, "w and b must be f32 [d]"),
    ("layer_norm", ["f32 3x4", None, "f32 1x4"], EPS, "w and b must be f32 [d]"),
    ("soft_max", ["f32 2x3x4", "f32 2x4"], {}, "must cover x's rows"),
    ("soft_max", ["f32 2x3x4", "f32 3x5"], {}, "must cover x's rows"),
    ("soft_max", ["f32 2x3x4", "bf16 3x4"], {}, "the mask must be f32 or f16"),
    ("soft_max", ["f32 2x3x4"], {"max_bias": 8.0}, "max_bias needs a mask"),
    ("rope", ["f32 3x4", "i32 3"], NORM, "x must be f32 [n_tok, n_head, hd]"),
    ("rope", ["f32 3x2x4", "i32 2"], NORM, "pos must be i32 [n_tok]"),
    ("rope", ["f32 3x2x4", "i32 3"], {**NORM, "n_dims": 6}, "n_dims=6"),
    ("rope", ["f32 3x2x4", "i32 3"], {**NORM, "n_dims": 3}, "n_dims=3"),
    ("rope", ["f32 3x2x8", "i32 2x3"], {"n_dims": 6, "mode": "2d"}, "multiple of four"),
    ("rope", ["f32 3x2x8", "i32 3"], {"n_dims": 8, "mode": "2d"}, "[2, n_tok]"),
    ("rope", ["f32 3x2x4", "i32 3", "f32 4"], NORM, "freq_factors must be f32 [2]"),
    ("rope", ["f32 3x2x4", "i32 3"], {**NORM, "ext_factor": 1.0}, "needs n_ctx_orig"),
    ("mul_mat", ["f32 5x4", "f32 3x6"], {}, "inner lengths 4 and 6 differ"),
    ("mul_mat", ["f32 5x4", "f16 3x4"], {}, "x must be f32"),
    ("mul_mat", ["f32 4", "f32 3x4"], {}, "w must be"),
    ("mul_mat", ["f32 4x5T", "f32 3x4"], {}, "rows dense"),
    ("mul_mat", ["f32 5x4", "f32 4x3T"], {}, "dense rows"),
    ("mul_mat", ["f32 2x5x4", "f32 3x3x4"], {}, "do not divide"),
    ("mul_mat", ["f32 2x5x4", "f32 3x4"], {}, "do not divide"),
    ("mul_mat", ["f32 3x1x5x4", "f32 2x6x3x4"], {}, "do not divide"),
    ("mul_mat_add", ["f32 5x4", "f32 3x4", "f32 4"], {}, "r must be f32 [3, 5] or [5]"),
    ("mul_mat_add", ["f32 5x4", "f32 3x6", "f32 5"], {}, "inner lengths 4 and 6 differ"),
    ("mul_mat_swiglu", ["f32 5x4", "f32 6x4", "f32 3x4"], {}, "one shape [n, k]"),
    ("mul_mat_swiglu", ["f32 5x4", "f32 5x4", "f32 3x5"], {}, "inner lengths 4 and 5 differ"),
    ("mul_mat_geglu", ["f32 5x4", "f32 6x4", "f32 3x4"], {}, "one shape [n, k]"),
    ("mul_mat_relu", ["f32 5x4", "f32 3x6"], {}, "inner lengths 4 and 6 differ"),
    ("mul_mat_bias_add", ["f32 5x4", "f32 3x4", "f32 3", "f32 3x5"], {}, "b must be [5]"),
    ("mul_mat_bias_add", ["f32 5x4", "f32 3x4", "f32 5", "f32 5"], {}, "and r [3, 5]"),
    ("mul_mat_two_add", [*TWO[:2], "f32 7x6", *TWO[3:]], {}, "one shape"),
    ("mul_mat_two_add", [*TWO[:4], "f32 5"], {}, "one shape"),
    ("mul_mat_two_add", [*TWO[:4], "f16 3x5"], {}, "must be f32"),
    ("mul_mat_two_add", [*TWO, None, "f32 3x5"], {}, "biases must be [5]"),
    ("mul_mat_two_add", [*TWO[:2], "f32 5x4", *TWO[3:]], {}, "differ"),
    ("mul_mat_gelu", ["f32 5x4", "f32 3x4", "f32 3x5"], {}, "b must be f32 [n]"),
    ("mul_mat_sparse", ["i32 5x4", "f32 3x4"], {}, "w must be [n_rows >= 1, ..]"),
    ("mul_mat_sparse", ["f32 5x4", "f16 3x4"], {}, "x must be f32 [m, ..]"),
    ("mul_mat_sparse", ["f32 5x4", "f32 3x5"], {}, "inner lengths 4 and 5 differ"),
    ("mul_mat_sparse", ["f32 5x4", "f32 3x4", "f32 2x5"], {}, "one row a token, 3"),
    ("mul_mat_sparse", ["f32 5x4", "f32 3x4", "f32 3x9"], {}, "5 rows for 9 neurons need a"),
    ("mul_mat_sparse", ["f32 5x4", "f32 3x4", None, "i32 4"], {}, "one entry a row, 5"),
    ("mul_mat_sparse", ["f32 5x4", "f32 3x4", None, "f32 5"], {}, "gpu_bucket must be dense i32"),
    ("mul_mat_sparse", ["f32 5x4", "f32 3x4", None, "i32 5"], {"n_ff": 4}, "5 rows for 4 neurons"),
    ("axpy_sparse", ["f32 4x5T", "f32 3x5"], {}, "rows dense"),
    ("axpy_sparse", ["f32 5x4", "f32 3x6"], {}, "5 rows for 6 neurons need a gpu_bucket"),
    ("axpy_sparse", ["f32 5x4", "f32 3x6", "f32 3x7"], {}, "disagree on n_ff: [6, 7]"),
    ("sparse_ffn", ["f32 5x4", "f32 6x4", "f32 5x4", "f32 3x4"], {}, "one shape"),
    ("sparse_ffn", ["f32 5x4", "f32 5x4", "f32 6x4", "f32 3x4"], {}, "as many rows"),
    ("sparse_ffn", ["f32 5x4", "f32 5x4", "f32 5x4", "f32 3x5"], {}, "inner lengths 4 and 5"),
    ("sparse_ffn", ["f32 5x4", "f32 5x4", "f32 5x4", "f32 3x4"], {"relu_up": 2}, "relu_up=2"),
    ("sparse_ffn", [None, "f32 5x4", "f32 6x4", "f32 3x4"], {}, "as many rows"),
    ("sparse_ffn", [None, "f32 5x4", "f32 5x4", "f32 3x4"], {"relu_up": 1}, "layers with w_gate"),
    ("sparse_ffn", [None, "f32 5x4", "f32 5x4", "f32 3x4"], {"cut": -1.0}, "expected 0 or more"),
    ("sparse_ffn", [*["f32 5x4"] * 3, "f32 3x4", None, None, None, "f32 5"], {}, "without w_gate"),
    ("sparse_ffn", [None, *["f32 5x4"] * 2, "f32 3x4", *[None] * 3, "f16 5"], {}, "b_up must be"),
    ("sparse_ffn", [None, *["f32 5x4"] * 2, "f32 3x4", *[None] * 3, "f32 6"], {}, "5 rows for 6"),
    ("norm_sparse_ffn", ["f32 3x4", "f32 4", *["f32 5x4"] * 3, "f32 3x5"], EPS, "r must have"),
    (
        "attention",
        ["f32 2x4x8", "f32 64x2x6", "f32 64x2x8", *POS],
        SCALE,
        "one head size",
    ),
    (
        "attention",
        ["f32 2x0x8", "f32 64x0x8", "f32 64x0x8", *POS],
        SCALE,
        "at least one head",
    ),
    (
        "attention",
        ["f32 2x0x8", "f32 64x2x8", "f32 64x2x8", *POS],
        SCALE,
        "at least one head",
    ),
    (
        "attention",
        ["f32 2x4x8", "f32 64x0x8", "f32 64x0x8", *POS],
        SCALE,
        "at least one head",
    ),
    (
        "attention",
        ["f32 2x4x8", "f32 64x2x8", "f32 64x2x0", *POS],
        SCALE,
        "at least one head",
    ),
    (
        "attention",
        ["f32 2x4x8", "f32 64x3x8", "f32 64x3x8", *POS],
        SCALE,
        "a multiple of",
    ),
    (
        "attention",
        ["f32 2x4x8", "f32 64x2x8", "f32 128x2x8", *POS],
        SCALE,
        "the same rows",
    ),
    (
        "attention",
        ["f32 2x4x8", "f32 64x2x8", "f32 64x2x8", "i32 3", *POS[1:]],
        SCALE,
        "pos must be i32",
    ),
    (
        "attention",
        ["f16 2x4x8", "f32 64x2x8", "f32 64x2x8", *POS],
        SCALE,
        "q must be f32",
    ),
    (
        "attention",
        ["f32 2x4x32", "q4_0 64x2x32", "f32 64x2x32", *POS],
        SCALE,
        "k and v must be",
    ),
    ("attention", ["f32 2x4x8", "f32 65x2x8", "f32 65x2x8", *POS], SCALE, "whole pages"),
    ("attention", [*KV, "i32 2", "i32 3", "i32 1x1"], SCALE, "seq must be i32"),
    ("attention", [*KV, "i32 2", "i32 2", "i32 1"], SCALE, "table must be i32 [n_seqs"),
    ("attention", [*KV, *POS], {**SCALE, "n_single": 3}, "n_single=3 of 2 tokens"),
    ("cpy", ["f32 3x4"], {"type": 99999}, "type=99999 is no known type"),
    ("cpy", ["f32 3x33"], {"type": 8}, "block of 32"),
    ("cpy", ["i32 3x4"], {"type": 0}, "cannot convert i32 to f32"),
    ("cont", ["q8_0 3x32"], {}, "is quantized"),
    ("sum", ["f32 3x4"], {"axis": 0}, "axis=0"),
    ("mean", ["f32 3x4"], {"axis": -3}, "axis=-3"),
    ("max", ["f16 3x4"], {}, "x must be f32"),
    ("mul_mat_id", ["f32 4x8", "f32 2x8", "i32 2x2"], {}, "w must be [E, n, k]"),
    ("mul_mat_id", ["f32 3x4x8", "f16 2x8", "i32 2x2"], {}, "x must be f32"),
    ("mul_mat_id", ["f32 3x4x8", "f32 2x7", "i32 2x2"], {}, "inner lengths 8 and 7"),
    ("mul_mat_id", ["f32 3x4x8", "f32 2x8", "f32 2x2"], {}, "ids must be i32"),
    ("mul_mat_id", ["f32 3x4x8", "f32 2x3x8", "i32 2x2"], {}, "ids for every row"),
    ("mul_mat_id", ["f32 3x4x8", "f32 2x8", "i32 2x2", "f32 3x8"], {}, "bias must be f32 [E, n]"),
    (
        "mul_mat_id_glu",
        ["f32 3x4x8", "f32 3x5x8", "f32 2x8", "i32 2x2"],
        {"act": "swiglu"},
        "one type",
    ),
    (
        "mul_mat_id_glu",
        ["f32 3x4x8", "f32 3x4x8", "f32 2x7", "i32 2x2"],
        {"act": "geglu"},
        "8 and 7",
    ),
    (
        "mul_mat_id_glu",
        ["f32 3x4x8", "f32 3x4x8", "f32 2x8", "i32 2x2", "f32 3x4"],
        {"act": "geglu"},
        "both have a bias",
    ),
    (
        "mul_mat_id_sum",
        ["f32 3x4x8", "f32 2x8", "i32 2x2", "f32 2x2"],
        {},
        "x must have a row for each id",
    ),
    (
        "mul_mat_id_sum",
        ["f32 3x4x8", "f32 2x2x8", "i32 2x2", "f32 2x3"],
        {},
        "shares must be f32 [m, u]",
    ),
    (
        "mul_mat_id_sum",
        ["f32 3x4x8", "f32 2x2x8", "i32 2x2", "f32 2x2", "f32 3x4", "f32 2x3"],
        {},
        "r must be f32 [m, n]",
    ),
    ("map_ids", ["i32 2x3", "f32 5"], {}, "must be i32"),
    ("map_ids", ["i32 6", "i32 5"], {}, "ids must be [m, u]"),
    ("route", ["f16 2x8"], ROUTE, "logits must be f32"),
    ("route", ["f32 2x8", "f32 7"], ROUTE, "bias must be f32 [E]"),
    ("route", ["f32 2x8"], {**ROUTE, "n_group": 3}, "1 of 3 groups of 8"),
    ("route", ["f32 2x8"], {**ROUTE, "n_group": 8}, "n_used=2 of 8"),
    ("route_weights", ["i32 2x8", "i32 2x3"], {"score": "sigmoid"}, "logits must be f32"),
    ("route_weights", ["f32 2x8", "i32 3x3"], {"score": "sigmoid"}, "a row for each"),
    ("route_weights", ["f32 2x0", "i32 2x3"], {"score": "sigmoid"}, "there must be experts"),
    ("all_reduce", ["f32 2x8", "f32 8x2"], {}, "operands must be dense f32 of one shape"),
    ("all_reduce", ["f16 2x8"], {}, "operands must be dense f32 of one shape"),
    ("all_reduce_add", ["f32 8", "f32 2x8"], {}, "operands must be dense f32"),
    ("all_reduce_norm", [None, "f32 1x8", "f32 2x8"], RANK, "whose rows the r_k share"),
    ("all_reduce_norm", [None, *HALVES, "f32 1x8"], RANK, "whose rows the r_k share"),
    ("all_reduce_norm", [None, "f32 2x4T", *HALVES[1:]], RANK, "must be dense"),
    ("all_reduce_norm", ["f32 4", *HALVES], RANK, "w must be dense f32 [d]"),
    ("all_reduce_norm", ["f32 8", *HALVES], {"rank": 2}, "rank must be one of 2"),
    ("moe_sum", ["f32 2x8", "f32 2x3"], {}, "x must be f32 [m, u, n]"),
    ("moe_sum", ["f32 2x3x8", "f32 2x2"], {}, "weights must be f32"),
    ("swiglu_clamped", ["f32 3x4", "f32 3x5"], {}, "one shape"),
    ("ssm_conv", ["f16 2x4", "f32 4x3", *STATE], {}, "x must be f32"),
    ("ssm_conv", ["f32 2x4", "f32 5x3", *STATE], {}, "w must be f32 [n, K]"),
    ("ssm_conv", ["f32 2x4", "f32 4x9", *STATE], {}, "K=9"),
    ("ssm_conv", ["f32 2x4", "f32 4x4", *STATE], {}, "the state must be f32 [n_slots, 12]"),
    ("ssm_conv", ["f32 2x4", "f32 4x3", "f32 5x8", "i32 3", "i32 2"], {}, "pos and slot must be"),
    ("ssm_conv", ["f32 2x4", "f32 4x3", *STATE, "f32 3"], {}, "bias must be f32 [n]"),
    ("gated_delta", ["f16 2x6", *GATES, *STATE], DELTA, "must be f32"),
    ("gated_delta", ["f32 2x6", "f32 2x2", *GATES[1:], *STATE], DELTA, "[n_tok, n_head_v]"),
    ("gated_delta", ["f32 2x4", *GATES, *STATE], DELTA, "do not fit"),
    ("gated_delta", ["f32 3x6", *GATES, *STATE], DELTA, "a row a token"),
    ("gated_delta", ["f32 2x6", *GATES, *STATE], DELTA, "the state must be f32 [n_slots, 4]"),
    ("ssm_scan", ["f16 2x6", *SCAN, *STATE], {"n_state": 2}, "must be f32"),
    ("ssm_scan", ["f32 3x6", *SCAN, *STATE], {"n_state": 2}, "xbc and dt must be"),
    ("ssm_scan", ["f32 2x6", *SCAN, *STATE], {"n_state": 3}, "do not fit"),
    ("ssm_scan", ["f32 2x6", "f32 2x2", *SCAN[1:], *STATE], {"n_state": 2}, "a value a head"),
    ("ssm_scan", ["f32 2x6", *SCAN, *STATE], {"n_state": 2}, "f32 [n_slots, 4]"),
    ("attention", [*KV, *POS, "f32 3"], SCALE, "sinks must be f32 [n_head]"),
    ("argmax", ["f32 3x0"], {}, "is empty"),
    ("scale", ["f16 3"], {"s": 2.0}, "x must be f32"),
    ("clamp", ["f32 3"], {"min": 2.0, "max": 1.0}, "min=2.0 is above max=1.0"),
    ("fatrelu", ["f16 3"], {"cut": 1.0}, "x must be f32"),
    ("fatrelu", ["f32 3"], {"cut": -0.5}, "cut=-0.5, expected 0 or more"),
    ("concat", ["f32 3x4", "f32 2x4"], {"axis": -1}, "shapes differ"),
    ("concat", ["f32 3x4", "f32 4"], {"axis": -1}, "shapes differ"),
    ("concat", ["f32 3x4", "f16 3x4"], {"axis": -1}, "one type"),
    ("concat", ["f32 3x4", "f32 3x4"], {"axis": 1}, "axis=1"),
    ("repeat", ["f32 3x4"], {"r0": 0}, "at least one"),
    ("repeat", ["q8_0 3x32"], {"r1": 2}, "is quantized"),
    ("top_k", ["f32 3x4"], {"k": 5}, "k=5 is not in 1..4"),
    ("top_k", ["f32 3x4"], {"k": 0}, "k=0"),
    ("sample", ["f16 2x9", "f32 2x8", "i64 2x2", "i32 2x4"], {}, "logits must be f32 [n, n_vocab]"),
    ("sample", ["f32 2x9", "f32 2x7", "i64 2x2", "i32 2x4"], {}, "settings must be f32 [2, 8]"),
    ("sample", ["f32 2x9", "f32 1x8", "i64 2x2", "i32 2x4"], {}, "settings must be f32 [2, 8]"),
    ("sample", ["f32 2x9", "f32 2x8", "i32 2x2", "i32 2x4"], {}, "rng must be i64 [2, 2]"),
    ("sample", ["f32 2x9", "f32 2x8", "i64 2x2", "f32 2x4"], {}, "history must be i32 [2, h]"),
]


@pytest.mark.parametrize("op, srcs, params, fragment", WRONG)
def test_wrong_operands(
    op: str, srcs: list[str | None], params: dict[str, Any], fragment: str
) -> None:
    g = Graph()
    tensors = [operand(g, i, text) for i, text in enumerate(srcs)]
    with pytest.raises(ShapeError) as caught, g.scope("blk.3"):
        g.op(op, *tensors, name="there", **params)
    message = str(caught.value)
    assert message.startswith(f"blk.3.there: {op}: ")
    assert fragment in message
    for t in tensors:
        if t is not None:
            assert f"{t.name} {t.dtype.name}{list(t.shape)}" in message
    assert not g.nodes


def test_every_op_is_here() -> None:
    unary = {"gelu", "gelu_erf", "relu", "sigmoid", "tanh", "exp", "neg", "sqr", "sqrt", "abs"}
    assert {spec.name for spec in all_ops()} - {w[0] for w in WRONG} == unary  # these are as silu


def test_too_few_or_missing_operands() -> None:
    g = Graph()
    x = g.input("x", dtype_by_name("f32"), (3,))
    with pytest.raises(ShapeError, match="add at add: 1 operands, takes 2 to 2"):
        g.add(x)
    with pytest.raises(ShapeError, match="add at add.2: operand 1 is required"):
        g.add(x, None)


@pytest.mark.parametrize(
    "op, params, message",
    [
        ("scale", {}, "scale: parameter s is required"),
        ("scale", {"s": 1.0, "bias": 2.0}, "scale: unknown parameter bias"),
        ("scale", {"s": "two"}, "scale: s='two', expected a number"),
        ("top_k", {"k": 1.5}, "top_k: k=1.5, expected an integer"),
        ("top_k", {"k": 1 << 31}, "top_k: k=2147483648, expected an integer of 32 bits"),
        ("scale", {"s": 1e39}, "scale: s=1e.39, expected a number of 32 bits"),
    ],
)
def test_wrong_parameters(op: str, params: dict[str, Any], message: str) -> None:
    g = Graph()
    with pytest.raises(TypeError, match=message):
        g.op(op, g.input("x", dtype_by_name("f32"), (3,)), **params)
