"""The families that convert: what each has beside the usual. Facts: transformers' model files, and
the tensors that llama.cpp's converter writes of the same checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import log, sqrt
from typing import Any

import numpy as np

from .activation import activation
from .checkpoint import Config, ConvertError
from .families_earlier import EARLIER, by_kind
from .families_experts import EXPERTS
from .families_recurrent import RECURRENT
from .families_relu import relu_families
from .family import (
    HEAD,
    Family,
    Weight,
    base_keys,
    fused_experts,
    halves,
    llama3_factors,
    pairs_of_neighbours,
    partial_dims,
    rope_keys,
    split_rows,
    text_only,
)


def _llama(c: Config) -> dict[str, Any]:
    return base_keys(c) | {
        "vocab_size": c.number("vocab_size"), "rope.dimension_count": c.head_dim,
    }  # fmt: skip


def _granite(c: Config) -> dict[str, Any]:
    keys = _llama(c)
    for ours, theirs in (("attention.scale", "attention_multiplier"),
                         ("embedding_scale", "embedding_multiplier"),
                         ("residual_scale", "residual_multiplier"),
                         ("logit_scale", "logits_scaling")):  # fmt: skip
        if c.get(theirs):
            keys[ours] = float(c.get(theirs))
    return keys


def _gemma(c: Config) -> dict[str, Any]:
    keys = base_keys(c)
    keys["attention.key_length"] = keys["attention.value_length"] = int(
        c.number("head_dim", default=256)
    )
    return keys


def _scaled_by_heads(c: Config, large: int) -> None:
    """Raises ConvertError for queries that are scaled in a way GGUF has no key for: by another
    number than the head's size, but for the largest models, which are known by their depth."""
    scalar = c.number("query_pre_attn_scalar", default=256)
    if scalar != c.number("head_dim", default=256) and c.layers != large:
        raise ConvertError(f"{c.path}: query_pre_attn_scalar {scalar} is not head_dim")


def _gemma2(c: Config) -> dict[str, Any]:
    _scaled_by_heads(c, 46)
    return _gemma(c) | {
        "attn_logit_softcapping": float(c.number("attn_logit_softcapping", default=50.0)),
        "final_logit_softcapping": float(c.number("final_logit_softcapping", default=30.0)),
        "attention.sliding_window": int(c.number("sliding_window", default=4096)),
    }


def _gemma3(c: Config) -> dict[str, Any]:
    _scaled_by_heads(c, 62)
    keys = _gemma(c)
    keys.setdefault("rope.freq_base", 1e6)
    if c.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = float(c.get("final_logit_softcapping"))
    if c.get("sliding_window_pattern") != 1:
        keys["attention.sliding_window"] = int(c.number("sliding_window"))
    local = c.rope.get("sliding_attention")
    theta = local.get("rope_theta") if isinstance(local, dict) else c.get("rope_local_base_freq")
    if theta is not None:
        keys["rope.freq_base_swa"] = float(theta)
    return keys


def _phi2(c: Config) -> dict[str, Any]:
    return base_keys(c) | {"rope.dimension_count": partial_dims(c, 0.5)}


def _phi3(c: Config) -> dict[str, Any]:
    keys = base_keys(c) | {"rope.dimension_count": partial_dims(c, 1.0)}
    keys["rope.scaling.original_context_length"] = c.rope["original_max_position_embeddings"]
    keys["attention.sliding_window"] = int(c.get("sliding_window", default=0))
    if c.rope.get("long_factor"):
        keys.pop("rope.scaling.type")  # its factors say it
        old = c.rope["original_max_position_embeddings"]
        scale = c.number("max_position_embeddings") / old
        keys["rope.scaling.attn_factor"] = sqrt(1 + log(scale) / log(old)) if scale > 1 else 1.0
    return keys


def _phi3_factors(c: Config) -> Mapping[str, np.ndarray]:
    found = {}
    for kind in ("long", "short"):
        if values := c.rope.get(f"{kind}_factor"):
            if len(values) != partial_dims(c, 1.0) // 2:
                raise ConvertError(f"{c.path}: {kind}_factor has {len(values)} numbers")
            found[f"rope_factors_{kind}.weight"] = np.array(values, np.float32)
    return found


def _stablelm(c: Config) -> dict[str, Any]:
    return base_keys(c) | {
        "rope.dimension_count": partial_dims(c, 0.25),
        "use_parallel_residual": bool(c.get("use_parallel_residual", default=False)),
    }


def _olmo2(c: Config) -> dict[str, Any]:
    keys = base_keys(c)
    if (window := c.get("sliding_window")) is not None:
        types = c.get("layer_types")
        keys["attention.sliding_window"] = int(window)
        keys["attention.sliding_window_pattern"] = (
            [t == "sliding_attention" for t in types] if types
            else [(i + 1) % 4 != 0 for i in range(c.layers)]
        )  # fmt: skip
    return keys


def _cohere2(c: Config) -> dict[str, Any]:
    return base_keys(c) | {
        "logit_scale": float(c.number("logit_scale")),
        "attention.sliding_window": int(c.number("sliding_window")),
        "vocab_size": c.number("vocab_size"),
        "rope.dimension_count": int(float(c.get("rotary_pct", default=1.0)) * c.head_dim),
        "rope.scaling.type": "none",
    }


def _glm4(c: Config) -> dict[str, Any]:
    return base_keys(c) | {"rope.dimension_count": partial_dims(c, 0.5)}


def _gpt2(c: Config) -> dict[str, Any]:
    width = c.number("n_embd", "hidden_size")
    return {
        "block_count": c.layers, "context_length": c.number("n_ctx", "n_positions"),
        "embedding_length": width, "feed_forward_length": c.get("n_inner") or 4 * width,
        "attention.head_count": c.heads,
        "attention.layer_norm_epsilon": float(c.number("layer_norm_epsilon")),
    }  # fmt: skip


def _bloom(c: Config) -> dict[str, Any]:
    width = c.number("hidden_size", "n_embed")
    return {
        "block_count": c.layers, "context_length": c.number("seq_length", default=width),
        "embedding_length": width, "feed_forward_length": 4 * width,
        "attention.head_count": c.heads, "attention.head_count_kv": c.heads,
        "attention.layer_norm_epsilon": float(c.number("layer_norm_epsilon")),
    }  # fmt: skip


def _mpt(c: Config) -> dict[str, Any]:
    width, attention = c.number("d_model"), c.get("attn_config", default={})
    keys = {
        "block_count": c.layers, "context_length": c.number("max_seq_len"),
        "embedding_length": width,
        "feed_forward_length": int(c.number("expansion_ratio", default=4) * width),
        "attention.head_count": c.heads, "attention.layer_norm_epsilon": 1e-5,
        "attention.max_alibi_bias": (
            float(attention.get("alibi_bias_max", 8)) if attention.get("alibi") else 0.0),
    }  # fmt: skip
    if attention.get("kv_n_heads"):
        keys["attention.head_count_kv"] = attention["kv_n_heads"]
    if attention.get("clip_qkv") is not None:
        keys["attention.clamp_kqv"] = float(attention["clip_qkv"])
    return keys


def _falcon_heads(c: Config) -> int:
    """Of keys and values."""
    if c.get("new_decoder_architecture"):
        return int(c.number("num_kv_heads", "n_head_kv", default=c.heads))
    return 1 if c.get("multi_query", default=True) else c.heads


def _falcon(c: Config) -> dict[str, Any]:
    width = c.number("hidden_size")
    if c.get("alibi"):
        raise ConvertError(f"{c.path}: alibi: Falcon with ALiBi is not supported")
    return {
        "block_count": c.layers, "context_length": 2048, "tensor_data_layout": "jploski",
        "embedding_length": width, "feed_forward_length": c.get("ffn_hidden_size") or 4 * width,
        "attention.head_count": c.heads, "attention.head_count_kv": _falcon_heads(c),
        "attention.layer_norm_epsilon": float(c.number("layer_norm_epsilon")),
    } | rope_keys(c)  # fmt: skip


# -- tensors ---------------------------------------------------------------------------------------


def _gpt2_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Its linear layers are stored the other way round."""
    if w.name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return [w.changed(lambda x: np.ascontiguousarray(x.T), w.shape[::-1])]
    return [w]


def _bloom_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Queries, keys and values come by head."""
    w = w.changed(lambda x: x, name=w.name.removeprefix("transformer."))
    return [by_kind(c, w) if "query_key_value" in w.name else w]


def _falcon_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Each head of keys and values stands behind the queries that share it."""
    if "query_key_value" not in w.name:
        return [w]
    heads, kv = c.heads, _falcon_heads(c)
    each = heads // kv

    def by_kind(x: np.ndarray) -> np.ndarray:
        groups = x.reshape(kv, each + 2, -1, *x.shape[1:])
        parts = groups[:, :-2], groups[:, -2:-1], groups[:, -1:]
        return np.concatenate([p.reshape(-1, *x.shape[1:]) for p in parts])

    return [w.changed(by_kind)]


def _ernie_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    base, _, kind = w.name.replace("ernie.", "model.").rpartition(".")
    n, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    stem = base.rpartition(".")[0]
    if base.endswith("qkv_proj"):
        return split_rows(w, {f"{stem}.q_proj.{kind}": n, f"{stem}.k_proj.{kind}": kv,
                              f"{stem}.v_proj.{kind}": kv})  # fmt: skip
    if base.endswith("up_gate_proj"):
        half = w.shape[0] // 2
        return split_rows(w, {f"{stem}.gate_proj.{kind}": half, f"{stem}.up_proj.{kind}": half})
    return [w.changed(lambda x: x, name=f"{base}.{kind}")]


def _stablelm_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """A norm before the feed-forward part says in GGUF that it comes after attention; norms of
    heads, that they are used."""
    if ".post_attention_layernorm." in w.name and c.get("use_parallel_residual"):
        return []
    if not c.get("qk_layernorm") and w.name.endswith(("q_layernorm.weight", "k_layernorm.weight")):
        return []
    return [w]


def _cohere2_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    if not w.name.endswith(".bias"):
        return [w]
    if np.any(w.make()):
        raise ConvertError(f"{w.name}: not zero, and GGUF has no such bias")
    return []


def _granite_moe_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Its experts are one tensor a layer, and so is the shared one, with gate and up in one."""
    for block, new in (("block_sparse_moe", "mlp.experts"), ("shared_mlp", "mlp.shared_experts")):
        stem = w.name.partition(f"{block}.")[0] + new
        if w.name.endswith(f"{block}.output_linear.weight"):
            return [w.changed(lambda x: x, name=f"{stem}.down_proj.weight")]
        if w.name.endswith(f"{block}.input_linear.weight"):
            return halves(w, stem)
    return pairs_of_neighbours(c, w)


def _granite_moe(c: Config) -> dict[str, Any]:
    return _granite(c) | {"expert_feed_forward_length": c.number("intermediate_size")}


def _qwen_moe_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Layers without experts have weights that the gguf package has no names of there."""
    found = re.fullmatch(r"model\.layers\.(\d{1,5})\.mlp\.(gate|up|down)_proj\.weight", w.name)
    if found is None:
        return fused_experts(c, w)
    return [w.changed(lambda x: x, name=f"blk.{found[1]}.ffn_{found[2]}.weight")]


def _mixtral_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    return [n for f in fused_experts(c, w) for n in pairs_of_neighbours(c, f)]


FAMILIES = (
    *relu_families(_llama, _falcon, _falcon_tensors),
    Family("llama", ("LlamaForCausalLM", "MistralForCausalLM", "LLaMAForCausalLM"), _llama,
           pairs_of_neighbours, llama3_factors),
    Family("llama", ("MixtralForCausalLM",), _llama, _mixtral_tensors, llama3_factors),
    Family("qwen2moe", ("Qwen2MoeForCausalLM",), base_keys, _qwen_moe_tensors),
    Family("qwen3moe", ("Qwen3MoeForCausalLM",), base_keys, _qwen_moe_tensors),
    Family("olmoe", ("OlmoeForCausalLM",), base_keys, fused_experts),
    Family("granitemoe", ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), _granite_moe,
           _granite_moe_tensors, llama3_factors),
    Family("smollm3", ("SmolLM3ForCausalLM",), _llama, pairs_of_neighbours, llama3_factors),
    Family("granite", ("GraniteForCausalLM",), _granite, pairs_of_neighbours, llama3_factors),
    Family("qwen2", ("Qwen2ForCausalLM",), base_keys),
    Family("qwen3", ("Qwen3ForCausalLM",), base_keys),
    Family("gemma", ("GemmaForCausalLM",), _gemma, shift=1.0, drop=HEAD),
    Family("gemma2", ("Gemma2ForCausalLM",), _gemma2, shift=1.0, drop=HEAD),
    Family("gemma3", ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), _gemma3, text_only,
           shift=1.0, drop=HEAD),
    Family("phi2", ("PhiForCausalLM",), _phi2),
    Family("phi3", ("Phi3ForCausalLM",), _phi3, extra=_phi3_factors),
    Family("stablelm", ("StableLmForCausalLM",), _stablelm, _stablelm_tensors),
    Family("starcoder2", ("Starcoder2ForCausalLM",), base_keys),
    Family("olmo2", ("Olmo2ForCausalLM", "Olmo3ForCausalLM"), _olmo2),
    Family("cohere2", ("Cohere2ForCausalLM",), _cohere2, _cohere2_tensors),
    Family("glm4", ("Glm4ForCausalLM",), _glm4),
    Family("ernie4_5", ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), base_keys, _ernie_tensors),
    Family("gpt2", ("GPT2LMHeadModel",), _gpt2, _gpt2_tensors),
    Family("bloom", ("BloomForCausalLM", "BloomModel"), _bloom, _bloom_tensors),
    Family("mpt", ("MptForCausalLM", "MPTForCausalLM"), _mpt),
    Family("falcon", ("FalconForCausalLM", "RWForCausalLM"), _falcon, _falcon_tensors),
    *EARLIER, *EXPERTS, *RECURRENT,
)  # fmt: skip


def family_of(config: Config) -> Family:
    """By the configuration's first architecture. Raises ConvertError listing those there are."""
    name = config.architecture
    act = activation(config)
    for family in FAMILIES:
        if name in family.classes and (not family.acts or act in family.acts):
            return family
    if acts := sorted({a for f in FAMILIES if name in f.classes for a in f.acts}):
        known = " or ".join(acts)
        raise ConvertError(f"{config.path}: {name} with activation {act!r}: expected {known}")
    known = ", ".join(sorted({c for f in FAMILIES for c in f.classes}))
    raise ConvertError(f"{config.path}: architecture {name!r} is not supported; have {known}")
