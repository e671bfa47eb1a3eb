"""What a family's conversion is made of: keys from a configuration, and what tensors become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isclose, log, pi, prod
from typing import Any

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.graph import F32, DType
from gguflow.engine.quants import decode

from .checkpoint import Config, ConvertError
from .safetensors import Stored
from .sparse_layers import by_list


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor on its way.

    name: as the checkpoint calls it, or its successor, which the tables of the gguf package know.
    make: the numbers in `dtype`'s storage, of `shape`. parts: of a stack, its matrices. slab: rows
    from one to another of a matrix, where these can be had without the others.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]
    parts: tuple[Weight, ...] = ()
    slab: Callable[[int, int], np.ndarray] | None = None

    @classmethod
    def of(cls, name: str, stored: Stored) -> Weight:
        return cls(name, stored.dtype, stored.shape, stored.values)

    @classmethod
    def stack(cls, name: str, parts: Sequence[Weight]) -> Weight:
        """Matrices of one shape, one after the other, which are never in memory together."""
        first = parts[0]
        if any((p.shape, p.dtype) != (first.shape, first.dtype) for p in parts):
            raise ConvertError(f"{name}: parts of several shapes or types")
        shape = (len(parts), *first.shape)
        return cls(name, first.dtype, shape, lambda: np.stack([p.make() for p in parts]),
                   tuple(parts))  # fmt: skip

    def slabs(self, most: int) -> Iterator[np.ndarray]:
        """The rows of what is not quantized, in the type's storage: at most so many numbers at a
        time, but at least a row."""
        n, k = prod(self.shape[:-1]), self.shape[-1] if self.shape else 1
        slab = self.slab
        if slab is None:
            values = self.make()
            if values.dtype != self.dtype.storage or values.shape != self.shape:
                raise AssertionError(f"{self.name}: {values.dtype}{values.shape}")
            whole = values.reshape(n, k)
            slab = lambda i, j: whole[i:j]  # noqa: E731
        step = max(1, most // max(1, k))
        for i in range(0, n, step):
            yield slab(i, min(n, i + step))

    def changed(
        self,
        change: Callable[[np.ndarray], np.ndarray],
        shape: Iterable[int] | None = None,
        name: str | None = None,
    ) -> Weight:
        """The same with its numbers in another order, or some of them."""
        make = self.make
        new = self.shape if shape is None else tuple(shape)
        # Of quantized rows there are bytes.
        stored = (*new[:-1], -1) if self.dtype.is_quantized else new
        return Weight(name or self.name, self.dtype, new, lambda: change(make()).reshape(stored))

    def rows(self, start: int, n: int, name: str) -> Weight:
        """Some of its rows."""
        if self.shape[0] < start + n:
            raise ConvertError(f"{self.name}: {self.shape[0]} rows, expected {start + n}")
        return self.changed(lambda x: x[start : start + n], (n, *self.shape[1:]), name)

    def computed(
        self,
        change: Callable[[np.ndarray], np.ndarray],
        shape: Iterable[int] | None = None,
        name: str | None = None,
    ) -> Weight:
        """What is computed of its numbers, as float32."""
        new = self.shape if shape is None else tuple(shape)

        def make() -> np.ndarray:
            values = np.asarray(change(decode(self.dtype, self.make(), self.shape)), np.float32)
            return np.ascontiguousarray(values).reshape(new)

        return Weight(name or self.name, F32, new, make)


Change = Callable[[Config, Weight], Iterable[Weight]]


def as_it_is(config: Config, w: Weight) -> Iterable[Weight]:
    return [w]


@dataclass(frozen=True)
class Family:
    """arch: GGUF's name of it. classes: transformers' names. keys: of the configuration, by their
    names after `<arch>.`. change: what a tensor becomes; nothing for one to leave out. extra:
    float32 tensors that no file has, by their GGUF names. shift: added to norms' weights. drop:
    what is left out. ahead: so are layers behind the last, which guess further tokens. acts: of
    models of these classes, those with these activations alone; of all where there are none."""

    arch: str
    classes: tuple[str, ...]
    keys: Callable[[Config], Mapping[str, Any]]
    change: Change = as_it_is
    extra: Callable[[Config], Mapping[str, np.ndarray]] = lambda config: {}
    shift: float = 0.0
    drop: tuple[str, ...] = ()
    ahead: bool = False
    acts: tuple[str, ...] = ()


def pairs_of_neighbours(config: Config, w: Weight) -> Iterable[Weight]:
    """Queries and keys of LLaMA: transformers rotates the two halves of a head, the published
    weights and GGUF neighbours."""
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(w.name.split(".")[-2])
    if heads is None:
        return [w]
    if w.shape[0] % (2 * heads):
        raise ConvertError(f"{w.name}: {w.shape[0]} rows for {heads} heads")

    def interleave(x: np.ndarray) -> np.ndarray:
        return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2)

    return [w.changed(interleave)]


def base_keys(c: Config) -> dict[str, Any]:
    """Sizes that every family has."""
    keys: dict[str, Any] = {
        "block_count": c.layers,
        "context_length": c.number("max_position_embeddings", "n_positions", "n_ctx",
                                   "max_seq_len", "seq_length"),
        "embedding_length": c.number("hidden_size", "n_embd", "n_embed", "d_model"),
        "feed_forward_length": c.number("intermediate_size", "n_inner", "ffn_hidden_size"),
        "attention.head_count": c.heads,
        "attention.head_count_kv": c.kv_heads,
    }  # fmt: skip
    if (eps := c.get("rms_norm_eps")) is not None:
        keys["attention.layer_norm_rms_epsilon"] = float(eps)
    if (eps := c.get("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")) is not None:
        keys["attention.layer_norm_epsilon"] = float(eps)
    keys |= expert_keys(c)
    if c.get("head_dim") is not None:
        keys["attention.key_length"] = keys["attention.value_length"] = c.head_dim
    return keys | rope_keys(c)


def direction_keys(c: Config) -> dict[str, Any]:
    """Of prefix language models, whose prompts are read in both directions."""
    old = c.get("attn_config")  # MPT's
    prefix = c.get("prefix_lm") or (isinstance(old, dict) and old.get("prefix_lm"))
    both = c.get("is_causal") is False or c.get("use_bidirectional_attention") is True
    return {"attention.causal": False} if prefix or both else {}


def expert_keys(c: Config) -> dict[str, Any]:
    """Of a mixture of experts; nothing for a model that is none."""
    if not c.get("num_local_experts", "num_experts"):
        return {}
    keys: dict[str, Any] = {
        "expert_count": c.number("num_local_experts", "num_experts"),
        "expert_used_count": c.number("num_experts_per_tok", "top_k_experts"),
    }
    for ours, theirs in (("feed", "moe_intermediate_size"),
                         ("shared_feed", "shared_expert_intermediate_size"),
                         ("shared_feed", "shared_intermediate_size")):  # fmt: skip
        if c.get(theirs):
            keys[f"expert_{ours}_forward_length"] = c.number(theirs)
    if c.get("norm_topk_prob") is not None:
        keys["expert_weights_norm"] = bool(c.get("norm_topk_prob"))
    return keys | by_list(c)


_YARN = {"ext_factor": "extrapolation_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}


def yarn_growth(factor: float, by: float = 1.0) -> float:
    """The number that YaRN makes of a stretch: 1 for none."""
    return 1.0 + 0.1 * by * log(factor) if factor > 1 else 1.0


def rope_number(c: Config, name: str) -> float | None:
    """A number about rotation, None where there is none. Raises ConvertError for what is no number,
    and for one below zero."""
    value = c.rope.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise ConvertError(f"{c.path}: {name} is {value!r}, expected a number from 0 on")
    return float(value)


def yarn_factor(c: Config) -> float:
    """By how much YaRN stretches positions."""
    given = rope_number(c, "factor")
    if given is None:
        old = rope_number(c, "original_max_position_embeddings")
        given = c.number("max_position_embeddings") / old if old else 0.0
    if not given > 0:
        raise ConvertError(f"{c.path}: factor is {given!r}, expected a number above 0")
    return given


def yarn_magnitude(c: Config) -> float:
    """Of rotated values, by YaRN."""
    factor = yarn_factor(c)
    if (told := rope_number(c, "attention_factor")) is not None:
        return told
    scale, all_dims = rope_number(c, "mscale"), rope_number(c, "mscale_all_dim")
    if scale and all_dims:
        return yarn_growth(factor, scale) / yarn_growth(factor, all_dims)
    return yarn_growth(factor)


def rope_keys(c: Config) -> dict[str, Any]:
    """Base of the angles and how they are stretched. Raises ConvertError for a way that GGUF has no
    keys for."""
    rope, keys = c.rope, dict[str, Any]()
    if (theta := rope.get("rope_theta")) is not None:
        keys["rope.freq_base"] = float(theta)
    kind = rope.get("rope_type") or "default"
    factor = rope.get("factor") or 1.0
    if kind == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(factor)}
    elif kind == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": yarn_factor(c),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
        for ours, theirs in _YARN.items():
            if (number := rope_number(c, theirs)) is not None:
                keys[f"rope.scaling.yarn_{ours}"] = number
        if rope.get("truncate") is False and c.architecture != "GptOssForCausalLM":
            raise ConvertError(
                f"{c.path}: truncate: false is not supported, GGUF has no key for it"
            )
        magnitude = yarn_magnitude(c) / yarn_growth(yarn_factor(c))
        if not isclose(magnitude, 1.0):
            keys["rope.scaling.attn_factor"] = magnitude
    elif kind in ("su", "longrope"):
        keys["rope.scaling.type"] = "longrope"
    elif kind not in ("default", "llama3", "none", "proportional"):
        raise ConvertError(f"{c.path}: rope_type {kind!r} is not supported")
    return keys


def llama3_factors(c: Config) -> Mapping[str, np.ndarray]:
    """Frequency factors of LLaMA 3.1: long waves are stretched, short ones kept, those between
    go over from one to the other."""
    rope = c.rope
    if rope.get("rope_type") != "llama3":
        return {}
    factor, old = float(rope.get("factor", 8)), float(rope["original_max_position_embeddings"])
    low, high = float(rope.get("low_freq_factor", 1)), float(rope.get("high_freq_factor", 4))
    dim = c.head_dim
    wave = 2 * pi * float(rope.get("rope_theta", 1e4)) ** (np.arange(0, dim, 2) / dim)
    smooth = (old / wave - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(wave < old / high, 1, np.where(wave > old / low, factor, between))
    return {"rope_freqs.weight": factors.astype(np.float32)}


def split_rows(w: Weight, parts: Mapping[str, int]) -> list[Weight]:
    """A fused matrix as several: (name, rows) each, in order."""
    if w.shape[0] != sum(parts.values()):
        raise ConvertError(f"{w.name}: {w.shape[0]} rows, expected {sum(parts.values())}")
    found, start = [], 0
    for name, n in parts.items():
        found.append(w.rows(start, n, name))
        start += n
    return found


HEAD = ("lm_head.weight",)  # of models whose head is their embeddings


def partial_dims(c: Config, default: float) -> int:
    """Rotated numbers of a head."""
    return int(float(c.rope.get("partial_rotary_factor") or default) * c.head_dim)


def text_only(c: Config, w: Weight) -> Iterable[Weight]:
    """Of a model that also sees or hears: the text model."""
    name = w.name.removeprefix("model.")
    if name.startswith(("vision_tower.", "multi_modal_projector.", "visual.", "audio_tower.",
                        "embed_vision.", "embed_audio.")):  # fmt: skip
        return []
    name = w.name.removeprefix("language_model.").replace("model.language_model.", "model.")
    return [w.changed(lambda x: x, name=name) if name != w.name else w]


def halves(w: Weight, stem: str) -> list[Weight]:
    """Gate and up of one tensor, gate first."""
    n, shape = w.shape[-2] // 2, (*w.shape[:-2], w.shape[-2] // 2, w.shape[-1])
    return [
        w.changed(lambda x: x[..., :n, :], shape, f"{stem}.gate_proj.weight"),
        w.changed(lambda x: x[..., n:, :], shape, f"{stem}.up_proj.weight"),
    ]


def fused_experts(c: Config, w: Weight) -> Iterable[Weight]:
    """Those of all experts in one tensor."""
    base, _, last = w.name.removesuffix(".weight").rpartition(".")
    if base.endswith("experts") and last == "gate_up_proj":
        return halves(w, base)
    if base.endswith("experts") and last == "down_proj":
        return [w.changed(lambda x: x, name=f"{base}.down_proj.weight")] if not w.parts else [w]
    return [w]
