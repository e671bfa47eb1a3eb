"""Families with states: Qwen3-Next, Qwen3.5 with and without experts, Mamba 2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .checkpoint import Config, ConvertError
from .family import Family, Weight, base_keys, fused_experts, partial_dims, text_only

SECTIONS = [11, 11, 10, 0]  # of rope, for images; positions of text are the same in all


def _qwen3_next(c: Config) -> dict[str, Any]:
    types = c.get("layer_types", default=[])
    every = int(c.number("full_attention_interval", default=4))
    flags = [t == "linear_attention" for t in types] or [
        (i + 1) % every > 0 for i in range(c.layers)
    ]
    if len(flags) != c.layers:
        raise ConvertError(f"{c.path}: layer_types: {len(flags)} for {c.layers} layers")
    return base_keys(c) | {
        "ssm.conv_kernel": c.number("linear_conv_kernel_dim"),
        "ssm.state_size": c.number("linear_key_head_dim"),
        "ssm.group_count": c.number("linear_num_key_heads"),
        "ssm.time_step_rank": c.number("linear_num_value_heads"),
        "ssm.inner_size": c.number("linear_value_head_dim") * c.number("linear_num_value_heads"),
        "attention.recurrent_layers": flags,
        "full_attention_interval": every,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "rope.dimension_count": partial_dims(c, 0.25),
    }


def _qwen35(c: Config) -> dict[str, Any]:
    keys = _qwen3_next(c)
    if "feed_forward_length" not in keys:  # of one whose layers all have experts
        keys["feed_forward_length"] = c.number("moe_intermediate_size")
    sections = [*(c.rope.get("mrope_section") or SECTIONS[:3]), 0, 0, 0, 0][:4]
    return keys | {"rope.dimension_sections": sections}


def _decay(w: Weight) -> Weight | None:
    """What scan and delta rule share: rates are stored as logarithms, the convolution with an axis
    of one, the bias of steps under another name."""
    stem, _, last = w.name.rpartition(".")
    if last == "A_log":
        return w.computed(lambda x: -np.exp(x))
    if last == "dt_bias":
        return w.changed(lambda x: x, name=f"{stem}.dt_proj.bias")
    if w.name.endswith("conv1d.weight") and len(w.shape) == 3:
        return w.changed(lambda x: x, (w.shape[0], w.shape[2]))
    return None


def _qwen3_next_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Queries, keys, values and gates come by key head; they are sorted by kind."""
    if not w.name.endswith("in_proj_qkvz.weight"):
        return [_decay(w) or n for n in fused_experts(c, w)]
    heads, k = c.number("linear_num_key_heads"), c.number("linear_key_head_dim")
    v = c.number("linear_num_value_heads") // heads * c.number("linear_value_head_dim")
    stem, n = w.name.removesuffix("in_proj_qkvz.weight"), w.shape[1]

    def by_kind(x: np.ndarray, *ends: int) -> np.ndarray:
        by_head = x.reshape(heads, 2 * k + 2 * v, n)
        parts = [by_head[:, a:b].reshape(-1, n) for a, b in zip(ends, ends[1:], strict=False)]
        return np.concatenate(parts)

    return [
        w.changed(lambda x: by_kind(x, 0, k, 2 * k, 2 * k + v), (heads * (2 * k + v), n),
                  _gguf(stem, "attn_qkv.weight")),
        w.changed(lambda x: by_kind(x, 2 * k + v, 2 * k + 2 * v), (heads * v, n),
                  _gguf(stem, "attn_gate.weight")),
    ]  # fmt: skip


def _gguf(stem: str, name: str) -> str:
    """A tensor of the layer that `model.layers.N.linear_attn.` is in, by its GGUF name."""
    return f"blk.{stem.split('.layers.')[1].split('.')[0]}.{name}"


def _qwen35_tensors(c: Config, given: Weight) -> Iterable[Weight]:
    for w in text_only(c, given):
        for n in fused_experts(c, w):
            yield _qwen35_tensor(c, n) if ".linear_attn." in n.name else n


def _qwen35_tensor(c: Config, w: Weight) -> Weight:
    """Value heads stand beside each other that share a key head; GGUF has the first ones of all key
    heads, then the second ones, and so on."""
    stem, _, last = w.name.partition(".linear_attn.")
    stem = f"{stem}.linear_attn."
    k_heads, dim = c.number("linear_num_key_heads"), c.number("linear_value_head_dim")
    each = c.number("linear_num_value_heads") // k_heads
    mixed = 2 * k_heads * c.number("linear_key_head_dim")  # rows of queries and keys

    def tiled(x: np.ndarray, size: int, axis: int = 0, start: int = 0) -> np.ndarray:
        fixed, moved = np.split(x, [start], axis)
        shape = moved.shape
        by_head = moved.reshape(*shape[:axis], k_heads, each, size, *shape[axis + 1 :])
        new = by_head.swapaxes(axis, axis + 1).reshape(shape)
        return np.ascontiguousarray(np.concatenate([fixed, new], axis))

    ready = _decay(w) or w
    if last == "in_proj_qkv.weight":
        return w.changed(lambda x: tiled(x, dim, start=mixed), name=_gguf(stem, "attn_qkv.weight"))
    if last == "in_proj_z.weight":
        return w.changed(lambda x: tiled(x, dim), name=_gguf(stem, "attn_gate.weight"))
    if last == "in_proj_b.weight":
        return w.changed(lambda x: tiled(x, 1), name=_gguf(stem, "ssm_beta.weight"))
    if last == "in_proj_a.weight":
        return w.changed(lambda x: tiled(x, 1), name=_gguf(stem, "ssm_alpha.weight"))
    if last in ("A_log", "dt_bias"):
        return ready.changed(lambda x: tiled(x, 1))
    if last == "conv1d.weight":
        return ready.changed(lambda x: tiled(x, dim, start=mixed))
    if last == "out_proj.weight":
        return w.changed(lambda x: tiled(x, dim, axis=1))
    return w


def _mamba2_sizes(c: Config) -> tuple[int, int, int]:
    """Values of a token, their heads, groups of heads."""
    width = c.number("hidden_size", "d_model")
    inner = int(c.number("d_inner", default=float(c.number("expand", default=2)) * width))
    head = c.number("head_dim", "mamba_d_head", default=64)
    if inner % head:
        raise ConvertError(f"{c.path}: head_dim: {inner} values are no heads of {head}")
    return inner, inner // head, int(c.number("n_groups", default=1))


def _mamba2(c: Config) -> dict[str, Any]:
    inner, heads, groups = _mamba2_sizes(c)
    return {
        "context_length": 1 << 20, "block_count": c.layers,
        "embedding_length": c.number("hidden_size", "d_model"),
        "feed_forward_length": 0, "attention.head_count": 0,
        "ssm.conv_kernel": c.number("conv_kernel", "d_conv", default=4),
        "ssm.state_size": c.number("state_size", "d_state", default=128),
        "ssm.inner_size": inner, "ssm.time_step_rank": heads, "ssm.group_count": groups,
        "attention.layer_norm_rms_epsilon": float(
            c.number("layer_norm_epsilon", "rms_norm_eps", default=1e-5)),
    }  # fmt: skip


def _mamba2_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    inner, _, groups = _mamba2_sizes(c)
    name = w.name.removeprefix("model.") if w.name.startswith("model.backbone") else w.name
    w = w.changed(lambda x: x, name=name)
    ready = _decay(w) or w
    if name.endswith((".A_log", ".D")):
        return [ready.changed(lambda x: x, (*ready.shape, 1))]
    if name.endswith("mixer.norm.weight"):
        return [w.changed(lambda x: x, (groups, inner // groups))]
    return [ready]


RECURRENT = (
    Family("qwen3next", ("Qwen3NextForCausalLM",), _qwen3_next, _qwen3_next_tensors, shift=1.0,
           ahead=True),
    Family("qwen35", ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"), _qwen35,
           _qwen35_tensors, shift=1.0, ahead=True),
    Family("qwen35moe", ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"), _qwen35,
           _qwen35_tensors, shift=1.0, ahead=True),
    Family("mamba2", ("Mamba2ForCausalLM",), _mamba2, _mamba2_tensors),
)  # fmt: skip
