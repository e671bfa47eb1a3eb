"""Families of experts whose layers are stored in ways of their own: gpt-oss, DeepSeek V2 and V3,
GLM-4.5, Gemma 4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isclose, log
from typing import Any

import numpy as np

from .checkpoint import Config, ConvertError
from .family import (
    HEAD,
    Family,
    Weight,
    base_keys,
    fused_experts,
    partial_dims,
    rope_number,
    text_only,
    yarn_factor,
    yarn_growth,
    yarn_magnitude,
)
from .sparse_layers import by_first, by_range

SOFTMAX, SIGMOID = 1, 2  # expert_gating_func


def _gpt_oss(c: Config) -> dict[str, Any]:
    return base_keys(c) | {
        "attention.sliding_window": int(c.number("sliding_window")),
        "expert_feed_forward_length": c.number("intermediate_size"),
    }


def _gpt_oss_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """Gate and up of each neuron are neighbours; matrices are stored the other way round, unless
    they are MXFP4."""
    if w.name.endswith("sinks"):
        return [w.changed(lambda x: x, name=f"{w.name}.weight")]
    base, _, last = w.name.rpartition(".")
    if not base.endswith("experts"):
        return [w]
    kind = "bias" if last.endswith("_bias") else "weight"
    turned = kind == "weight" and not w.dtype.is_quantized
    if turned:
        *experts, k, n = w.shape
        w = w.changed(lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)), (*experts, n, k))
    if last.startswith("down_proj"):
        return [w.changed(lambda x: x, name=f"{base}.down_proj.{kind}")]
    axis = len(w.shape) - (1 if kind == "bias" else 2)
    shape = tuple(n // 2 if i == axis else n for i, n in enumerate(w.shape))

    def part(at: int, name: str) -> Weight:
        every_second = (slice(None),) * axis + (slice(at, None, 2),)
        return w.changed(lambda x: x[every_second], shape, f"{base}.{name}_proj.{kind}")

    return [part(0, "gate"), part(1, "up")]


def _routed(c: Config) -> dict[str, Any]:
    """Of experts as DeepSeek's and GLM's configurations have them."""
    if c.get("n_routed_experts") is None:
        return {}
    keys: dict[str, Any] = {
        "expert_count": c.number("n_routed_experts"),
        "expert_used_count": c.number("num_experts_per_tok"),
        "expert_feed_forward_length": c.number("moe_intermediate_size"),
        "expert_shared_count": int(c.get("n_shared_experts", default=0)),
        "expert_weights_scale": float(c.number("routed_scaling_factor", default=1.0)),
        "expert_weights_norm": bool(c.get("norm_topk_prob", default=False)),
    }
    return keys | by_first(c)


def _groups(c: Config) -> dict[str, Any]:
    if int(c.get("n_group", default=1)) <= 1:
        return {}
    return {"expert_group_count": c.number("n_group"),
            "expert_group_used_count": c.number("topk_group")}  # fmt: skip


def _deepseek(c: Config) -> dict[str, Any]:
    rank, turned = c.number("kv_lora_rank"), c.number("qk_rope_head_dim")
    keys = base_keys(c) | _routed(c) | {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": c.number("qk_nope_head_dim") + turned,
        "attention.value_length_mla": c.number("v_head_dim"),
        "rope.dimension_count": turned,
        "vocab_size": c.number("vocab_size"),
    }  # fmt: skip
    if c.get("q_lora_rank"):
        keys["attention.q_lora_rank"] = c.number("q_lora_rank")
    third = c.architecture.startswith("DeepseekV3")
    keys["expert_gating_func"] = SIGMOID if third else SOFTMAX
    if third or c.get("topk_method") == "group_limited_greedy":
        keys |= _groups(c)
    if not third:  # its own implementation never divides the shares by their sum
        keys["expert_weights_norm"] = False
    if c.rope.get("rope_type") == "yarn":
        keys.pop("rope.scaling.attn_factor", None)  # which means another thing here
        keys |= _latent_yarn(c)
    return keys


def _latent_yarn(c: Config) -> dict[str, float]:
    """In GGUF, the magnitude of rotated values multiplies all scores once more, by its square; what
    the logarithm of the stretch is multiplied by, makes up for it."""
    magnitude, factor = yarn_magnitude(c), yarn_factor(c)
    all_dims = rope_number(c, "mscale_all_dim") or 0.0
    if factor == 1.0:
        return {}
    grown = yarn_growth(factor, all_dims) / magnitude if magnitude else 1.0
    if factor < 1 or isclose(grown, 1.0):  # no such number, or one that means another thing
        raise ConvertError(
            f"{c.path}: mscale {c.rope.get('mscale')} with mscale_all_dim {all_dims} is not "
            "supported, GGUF has no keys for it"
        )
    own = {} if isclose(magnitude, 1.0) else {"rope.scaling.attn_factor": magnitude}
    return own | {"rope.scaling.yarn_log_multiplier": (grown - 1) / log(factor)}


def _correction(w: Weight) -> Weight:
    """The bias of the choice under the name that the tables have for it."""
    if not w.name.endswith("e_score_correction_bias"):
        return w
    return w.changed(lambda x: x, name=w.name.replace("correction_bias", "correction.bias"))


def _pairs_of_neighbours(c: Config, w: Weight) -> Weight:
    """The rotated part of queries and of the key, where halves of it are rotated: GGUF rotates
    neighbours."""
    if not c.architecture.startswith("DeepseekV3") or c.get("rope_interleave", default=True):
        return w
    part, turned = w.name.split(".")[-2], int(c.number("qk_rope_head_dim"))
    if part in ("q_proj", "q_b_proj"):
        heads, plain = c.heads, int(c.number("qk_nope_head_dim"))
    elif part == "kv_a_proj_with_mqa":
        heads, plain = 1, int(c.number("kv_lora_rank"))
    else:
        return w
    if w.shape[0] != heads * (plain + turned):
        raise ConvertError(f"{w.name}: {w.shape[0]} rows, expected {heads * (plain + turned)}")

    def change(x: np.ndarray) -> np.ndarray:
        each = x.reshape(heads, plain + turned, *x.shape[1:])
        halves = each[:, plain:].reshape(heads, 2, turned // 2, *x.shape[1:])
        pairs = halves.swapaxes(1, 2).reshape(heads, turned, *x.shape[1:])
        return np.concatenate([each[:, :plain], pairs], axis=1)

    return w.changed(change)


def _deepseek_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    """The product that makes keys and values of the latent, by head; that of keys turned round."""
    if not w.name.endswith("kv_b_proj.weight"):
        return [_correction(n) for n in fused_experts(c, _pairs_of_neighbours(c, w))]
    plain, values, rank = c.number("qk_nope_head_dim"), c.number("v_head_dim"), w.shape[1]
    heads = c.heads

    def by_head(x: np.ndarray) -> np.ndarray:
        return x.reshape(heads, plain + values, rank)

    return [
        w.changed(lambda x: by_head(x)[:, :plain].swapaxes(1, 2), (heads, rank, plain),
                  w.name.replace("kv_b_proj", "k_b_proj")),
        w.changed(lambda x: by_head(x)[:, plain:], (heads, values, rank),
                  w.name.replace("kv_b_proj", "v_b_proj")),
    ]  # fmt: skip


def _glm4_moe(c: Config) -> dict[str, Any]:
    return base_keys(c) | _routed(c) | _groups(c) | {
        "rope.dimension_count": partial_dims(c, 0.5), "expert_gating_func": SIGMOID,
    }  # fmt: skip


def _glm4_moe_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    return [_correction(n) for n in fused_experts(c, w)]


def _gemma4_windows(c: Config) -> list[bool]:
    """Of every layer, whether it has a window."""
    windows = [t == "sliding_attention" for t in c.get("layer_types", default=[])]
    if len(windows) != c.layers:
        raise ConvertError(f"{c.path}: layer_types: {len(windows)} for {c.layers} layers")
    return windows


def _gemma4_whole(c: Config) -> tuple[int, int]:
    """Values of a head, and heads of keys, of layers without a window."""
    per_layer = c.get("per_layer_config", default={})
    dim = int(c.number("global_head_dim", default=c.head_dim if per_layer else 512))
    same = c.get("attention_k_eq_v", default=False)
    kv = int(c.get("num_global_key_value_heads", default=c.kv_heads)) if same else c.kv_heads
    found = set()
    for i, window in enumerate(_gemma4_windows(c)):
        own = per_layer.get(str(i), {}) if isinstance(per_layer, dict) else {}
        if window and own:
            raise ConvertError(f"{c.path}: per_layer_config: {i} has a window and sizes of its own")
        if not window:
            found.add((int(own.get("head_dim", dim)), int(own.get("num_key_value_heads", kv))))
    if len(found) > 1:
        raise ConvertError(f"{c.path}: per_layer_config: layers without a window differ")
    return found.pop() if found else (c.head_dim, c.kv_heads)


def _gemma4(c: Config) -> dict[str, Any]:
    if c.get("use_bidirectional_attention") == "all":
        raise ConvertError(f"{c.path}: use_bidirectional_attention: only causal models convert")
    windows, (wide, wide_kv) = _gemma4_windows(c), _gemma4_whole(c)
    whole, local = (c.rope.get(t) or {} for t in ("full_attention", "sliding_attention"))
    head_dim, kv, n_ff = c.head_dim, c.kv_heads, c.number("intermediate_size")
    n_shared = int(c.get("num_kv_shared_layers", default=0))
    keys = base_keys(c) | {
        "attention.key_length": wide, "attention.value_length": wide,
        "attention.key_length_swa": head_dim, "attention.value_length_swa": head_dim,
        "attention.head_count_kv": [kv if window else wide_kv for window in windows],
        "attention.sliding_window": int(c.number("sliding_window")),
        "attention.sliding_window_pattern": windows,
        "attention.shared_kv_layers": n_shared,
        "embedding_length_per_layer_input": int(c.get("hidden_size_per_layer_input", default=0)),
        "rope.dimension_count": wide,
        "rope.dimension_count_swa": int(head_dim * local.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": float(whole.get("rope_theta", 1e6)),
        "rope.freq_base_swa": float(local.get("rope_theta", 1e4)),
    }  # fmt: skip
    if c.get("use_double_wide_mlp"):
        first = c.layers - n_shared
        keys["feed_forward_length"] = [n_ff * (1 if i < first else 2) for i in range(c.layers)]
    if c.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = float(c.get("final_logit_softcapping"))
    if not c.get("enable_moe_block"):
        return {k: v for k, v in keys.items() if not k.startswith("expert_")}
    return keys | {
        "expert_count": c.number("num_experts"),
        "expert_used_count": c.number("top_k_experts"),
        "expert_feed_forward_length": c.number("moe_intermediate_size"),
    }


def _gemma4_factors(c: Config) -> Mapping[str, np.ndarray]:
    """Of the layers without a window, only some pairs are turned: the others by a frequency that is
    none."""
    whole, (wide, _) = c.rope.get("full_attention") or {}, _gemma4_whole(c)
    n = int(wide * float(whole.get("partial_rotary_factor", 1.0)) / 2)
    factors = np.full(wide // 2, 1e30, np.float32)
    factors[:n] = 1.0
    return {"rope_freqs.weight": factors}


def _gemma4_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    for kept in text_only(c, w):
        layer = kept.name.split(".")[2] if ".layers." in kept.name else ""
        renamed = {
            "layer_scalar": f"blk.{layer}.layer_output_scale.weight",
            "router.scale": f"blk.{layer}.ffn_gate_inp.scale",
            "router.per_expert_scale": f"blk.{layer}.ffn_down_exps.scale",
            "experts.gate_up_proj": f"blk.{layer}.ffn_gate_up_exps.weight",
            "experts.down_proj": f"blk.{layer}.ffn_down_exps.weight",
        }
        name = kept.name.removesuffix(".weight")
        new = next((to for end, to in renamed.items() if name.endswith(f".{end}")), kept.name)
        yield kept.changed(lambda x: x, name=new)


def _ernie_moe(c: Config) -> dict[str, Any]:
    each, n_shared = c.number("moe_intermediate_size"), c.number("moe_num_shared_experts")
    return base_keys(c) | {
        "expert_count": c.number("moe_num_experts"), "expert_used_count": c.number("moe_k"),
        "expert_feed_forward_length": each, "expert_shared_count": n_shared,
        "expert_shared_feed_forward_length": each * n_shared,
    } | by_range(c)  # fmt: skip


def _ernie_moe_tensors(c: Config, w: Weight) -> Iterable[Weight]:
    if w.name.endswith("moe_statics.e_score_correction_bias"):  # has a row
        name = w.name.replace("correction_bias", "correction.bias")
        return [w.changed(lambda x: x.reshape(-1), (w.shape[-1],), name)]
    return fused_experts(c, w)


EXPERTS = (
    Family("ernie4_5-moe", ("Ernie4_5_MoeForCausalLM", "Ernie4_5MoeForCausalLM"), _ernie_moe,
           _ernie_moe_tensors),
    Family("gpt-oss", ("GptOssForCausalLM",), _gpt_oss, _gpt_oss_tensors),
    Family("deepseek2", ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), _deepseek,
           _deepseek_tensors, ahead=True),
    Family("glm4moe", ("Glm4MoeForCausalLM",), _glm4_moe, _glm4_moe_tensors,
           ahead=True),
    Family("gemma4", ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), _gemma4,
           _gemma4_tensors, _gemma4_factors, drop=HEAD),
)  # fmt: skip
