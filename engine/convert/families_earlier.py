"""Families that came before most others, and those made after them: GPT-NeoX, OPT, Baichuan,
ChatGLM, MiniCPM. Facts: the model files of transformers and of the checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import sqrt
from typing import Any

import numpy as np

from .checkpoint import Config, ConvertError
from .family import (
    HEAD,
    Family,
    Weight,
    base_keys,
    pairs_of_neighbours,
    partial_dims,
    rope_keys,
    split_rows,
)

BAICHUAN_2_VOCAB = 125_696  # whose heads are used with rows of length one


def by_kind(c: Config, w: Weight) -> Weight:
    """Queries, keys and values that come by head: all queries first, then keys, then values."""
    heads = c.heads

    def change(x: np.ndarray) -> np.ndarray:
        return x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1)

    return w.changed(change)


def _gptneox(c: Config) -> dict[str, Any]:
    # The fast forms of GELU are within 1e-3 of it everywhere, and GGUF has no word for them.
    if c.get("hidden_act", default="gelu") not in ("gelu", "gelu_fast", "gelu_new"):
        raise ConvertError(f"{c.path}: hidden_act {c.get('hidden_act')!r} is not supported")
    share = c.rope.get("partial_rotary_factor") or c.get("rotary_pct", default=0.25)
    keys = base_keys(c) | {
        "rope.dimension_count": int(float(share) * c.head_dim),
        "use_parallel_residual": bool(c.get("use_parallel_residual", default=True)),
    }
    if "rope.freq_base" not in keys:
        keys["rope.freq_base"] = float(c.number("rotary_emb_base", default=1e4))
    return keys


def _gptneox_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    return [by_kind(c, w) if ".query_key_value." in w.name else w]


def _opt(c: Config) -> dict[str, Any]:
    width = c.number("hidden_size")
    for key, only in (("do_layer_norm_before", True), ("enable_bias", True),
                      ("layer_norm_elementwise_affine", True), ("_remove_final_layer_norm", False),
                      ("activation_function", "relu"), ("word_embed_proj_dim", width)):  # fmt: skip
        if c.get(key, default=only) != only:
            raise ConvertError(f"{c.path}: {key} {c.get(key)!r} is not supported, only {only!r}")
    return {
        "block_count": c.layers, "context_length": c.number("max_position_embeddings"),
        "embedding_length": width, "feed_forward_length": c.number("ffn_dim"),
        "attention.head_count": c.heads, "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip


_OPT_LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
              "self_attn_layer_norm": "attn_norm", "final_layer_norm": "ffn_norm",
              "fc1": "ffn_up", "fc2": "ffn_down"}  # fmt: skip
_OPT = {"embed_tokens": "token_embd", "embed_positions": "position_embd",
        "final_layer_norm": "output_norm"}  # fmt: skip


def _opt_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Names that the gguf package has no table of."""
    found = re.fullmatch(
        r"(?:model\.)?decoder\.(?:layers\.(\d{1,5})\.)?(.+)\.(weight|bias)", w.name
    )
    new = found and (_OPT if found[1] is None else _OPT_LAYER).get(found[2])
    if found is None or new is None:
        raise ConvertError(f"{c.path}: tensor {w.name}: opt has no such weight")
    prefix = "" if found[1] is None else f"blk.{found[1]}."
    return [w.changed(lambda x: x, name=f"{prefix}{new}.{found[3]}")]


def _baichuan(c: Config) -> dict[str, Any]:
    if c.get("max_position_embeddings") is None:  # the 13B models'
        c = Config(
            c.values | {"max_position_embeddings": c.number("model_max_length")}, c.path
        )  # fmt: skip
    return base_keys(c) | {"rope.dimension_count": c.head_dim}


def _baichuan_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    if w.name.endswith("self_attn.W_pack.weight"):
        stem, n = w.name.removesuffix("W_pack.weight"), c.heads * c.head_dim
        parts = split_rows(w, {f"{stem}{x}_proj.weight": n for x in "qkv"})
        return [new for part in parts for new in pairs_of_neighbours(c, part)]
    if w.name in HEAD and c.number("vocab_size") == BAICHUAN_2_VOCAB:
        return [w.computed(lambda x: x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12))]
    return [w]


def _chatglm(c: Config) -> dict[str, Any]:
    """ChatGLM 2, 3 and GLM-4-9B by their own code, or as transformers has the last."""
    if not c.get("rmsnorm", default=True) or c.get("apply_residual_connection_post_layernorm"):
        raise ConvertError(f"{c.path}: LayerNorms and residuals of ChatGLM 1 are not supported")
    if c.architecture == "GlmForCausalLM":
        return base_keys(c) | {"rope.dimension_count": partial_dims(c, 0.5)}
    groups = c.heads
    if c.get("multi_query_attention"):
        groups = int(c.number("multi_query_group_num"))
    dim = int(c.number("kv_channels", default=c.head_dim))
    return {
        "block_count": c.layers, "context_length": c.number("seq_length"),
        "embedding_length": c.number("hidden_size"),
        "feed_forward_length": c.number("ffn_hidden_size"),
        "attention.head_count": c.heads, "attention.head_count_kv": groups,
        "attention.key_length": dim, "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": float(c.number("layernorm_epsilon")),
        "rope.dimension_count": dim // 2,
        "rope.freq_base": 1e4 * float(c.number("rope_ratio", default=1)),
    }  # fmt: skip


def _chatglm_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    name = w.name.removeprefix("transformer.")
    if name == "rotary_pos_emb.inv_freq":
        return []
    return [w.changed(lambda x: x, name=name)]


def _minicpm(c: Config) -> dict[str, Any]:
    if c.rope.get("long_factor") or c.get("num_experts"):
        raise ConvertError(f"{c.path}: MiniCPM with experts or LongRoPE is not supported")
    return base_keys(c) | rope_keys(c) | {
        "vocab_size": c.number("vocab_size"), "rope.dimension_count": c.head_dim,
        "embedding_scale": float(c.number("scale_emb")),
        "residual_scale": float(c.number("scale_depth")) / sqrt(c.layers),
        "logit_scale": c.number("hidden_size") / float(c.number("dim_model_base")),
    }  # fmt: skip


EARLIER = (
    Family("gptneox", ("GPTNeoXForCausalLM",), _gptneox, _gptneox_tensors),
    Family("opt", ("OPTForCausalLM",), _opt, _opt_tensors, drop=HEAD),
    Family("baichuan", ("BaichuanForCausalLM", "BaiChuanForCausalLM"), _baichuan,
           _baichuan_tensors),
    Family("chatglm", ("ChatGLMModel", "ChatGLMForConditionalGeneration", "GlmForCausalLM"),
           _chatglm, _chatglm_tensors),
    Family("minicpm", ("MiniCPMForCausalLM",), _minicpm, pairs_of_neighbours),
)  # fmt: skip
