"""Hyperparameters of a decoder, from GGUF keys and back.

Key names: the GGUF specification, section "LLM".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gguflow.engine.dataclass import dataclass, field, fields, replace
from gguflow.engine.gguf.errors import show
from gguflow.engine.gguf.keys import described

from .keys import Keys, ModelError
from .parts import (
    Experts,
    Latent,
    Recurrent,
    expert_keys,
    latent_keys,
    read_experts,
    recurrent_keys,
)

# Numbers that change the results and that only some families have: field -> key. A file that sets
# one which its family does not have is refused.
FAMILY_KEYS = {
    "attn_scale": "attention.scale",
    "attn_softcap": "attn_logit_softcapping",
    "logit_softcap": "final_logit_softcapping",
    "embd_scale": "embedding_scale",
    "residual_scale": "residual_scale",
    "logit_scale": "logit_scale",
    "rope_base_window": "rope.freq_base_swa",
    "alibi_bias": "attention.max_alibi_bias",
    "clamp_kqv": "attention.clamp_kqv",
}


_MAX_STRETCH = 1e6  # of positions, and by how much a number about them may differ from 1


@dataclass(frozen=True)
class HParams:
    """Hyperparameters of a decoder-only transformer, under the field's usual names.

    by_layer: fields that differ from layer to layer, a value for every layer; such a field itself
    holds the largest of them. `layer` gives the hyperparameters of one layer.
    """

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    head_dim_v: int
    norm_eps: float
    rope_dims: int  # of a head; 0: positions are not rotated
    rope_base: float
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    sliding_window: int = 0  # 0: every token sees all before it
    attn_scale: float = 0.0  # of queries times keys; 0: 1 / sqrt(head_dim)
    attn_softcap: float = 0.0  # bound of attention's scores; 0: none
    logit_softcap: float = 0.0
    embd_scale: float = 1.0
    residual_scale: float = 1.0  # of what a block adds to the residual stream
    logit_scale: float = 1.0
    rope_base_window: float = 0.0  # of layers with a sliding window; 0: as the others
    alibi_bias: float = 0.0  # ALiBi's largest bias; 0: none
    clamp_kqv: float = 0.0  # bound of queries, keys and values; 0: none
    causal: bool = True  # whether a prompt's tokens see those before them alone, and not all of it
    experts: Experts | None = None
    recurrent: Recurrent | None = None
    latent: Latent | None = None
    by_layer: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def n_embd_kv(self) -> int:
        return self.n_head_kv * self.head_dim

    def layer(self, i: int) -> HParams:
        """The hyperparameters as they hold in layer i."""
        if not self.by_layer:
            return self
        return replace(self, by_layer={}, **{name: v[i] for name, v in self.by_layer.items()})


def architecture_name(metadata: Mapping[str, Any]) -> str:
    """What a file says it is. Raises ModelError."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"general.architecture: expected a string, found {described(name)}")
    return name


def read_hparams(
    metadata: Mapping[str, Any],
    n_vocab: int,
    eps_key: str = "attention.layer_norm_rms_epsilon",
    reads: Mapping[str, float] | None = None,
    routing: Experts | None = None,
) -> HParams:
    """Hyperparameters from GGUF metadata. n_vocab: rows of the embedding table.

    eps_key: of the family's norms. reads: the fields of FAMILY_KEYS that the family has, with what
    a file without the key means by that; the same for `sliding_window`, which all families have.
    routing: of a family with experts, what it means by keys that are left out.
    Raises ModelError naming the key.
    """
    arch = architecture_name(metadata)
    k, reads = Keys(metadata, arch), reads or {}
    n_embd = k.integer("embedding_length", least=1, most=1 << 20)
    n_block = k.integer("block_count", least=1, most=1 << 12)
    # Layers that predict a token ahead stand at the end; they are not run.
    n_layer = n_block - k.integer("nextn_predict_layers", 0, most=n_block - 1)
    heads = k.by_layer("attention.head_count", n_block, least=1, most=1 << 16)
    heads_kv = k.by_layer("attention.head_count_kv", n_block, heads, least=1, most=1 << 16)
    for n_head, n_head_kv in zip(heads, heads_kv, strict=True):
        if n_head % n_head_kv:
            raise ModelError(
                f"{arch}.attention.head_count_kv: {n_head_kv} KV heads do not divide {n_head} heads"
            )
    head_dim = k.integer("attention.key_length", n_embd // max(heads), least=2, most=1 << 16)
    n_ff = k.by_layer("feed_forward_length", n_block, least=1, most=1 << 22)
    windows = _windows(k, n_block, int(reads.get("sliding_window", 0)))
    found = {"n_head": heads, "n_head_kv": heads_kv, "n_ff": n_ff, "sliding_window": windows}
    numbers = {name: values[:n_layer] for name, values in found.items()}
    hp = HParams(
        arch=arch,
        n_vocab=n_vocab,
        n_ctx_train=k.integer("context_length", least=1, most=1 << 28),
        n_embd=n_embd,
        n_layer=n_layer,
        head_dim=head_dim,
        head_dim_v=k.integer("attention.value_length", head_dim, least=1, most=1 << 16),
        norm_eps=k.real(eps_key, least=0.0),
        rope_dims=k.integer("rope.dimension_count", head_dim, least=2, most=1 << 16),
        rope_base=k.real("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(k),
        n_head=max(numbers["n_head"]),
        n_head_kv=max(numbers["n_head_kv"]),
        n_ff=max(numbers["n_ff"]),
        sliding_window=max(numbers["sliding_window"]),
        causal=k.flag("attention.causal", True),
        by_layer={name: values for name, values in numbers.items() if len(set(values)) > 1},
    )
    if hp.rope_dims > head_dim or hp.rope_dims % 2:
        raise ModelError(
            f"{arch}.rope.dimension_count: {hp.rope_dims} of {head_dim} values a head; expected "
            "an even number up to it"
        )
    if hp.rope_base <= 0:
        raise ModelError(f"{arch}.rope.freq_base: {hp.rope_base} is not positive")
    if hp.rope_base <= 1 and "ext_factor" in hp.rope_scaling:
        raise ModelError(f"{arch}.rope.freq_base: {hp.rope_base}, expected more than 1 for YaRN")
    if routing is not None:
        hp = replace(hp, experts=read_experts(k, hp.n_ff, routing))
    elif k.integer("expert_count", 0):
        raise ModelError(
            f"{arch}.expert_count: {k.find('expert_count')} experts, and the {arch} architecture "
            "has none"
        )
    return replace(hp, **_family_numbers(k, reads))


def _windows(k: Keys, n_layer: int, default: int) -> tuple[int, ...]:
    """The sliding window of every layer. A file may say which layers have it: by a flag for each,
    or by a number n, where every n-th has none."""
    window = k.integer("attention.sliding_window", default)
    key = "attention.sliding_window_pattern"
    flags: tuple[bool, ...] = (True,) * n_layer
    if isinstance(k.find(key), int):
        n = k.integer(key, least=1)
        flags = tuple((i + 1) % n > 0 for i in range(n_layer))
    elif k.find(key) is not None:
        flags = k.flags(key, n_layer)
    return tuple(window if flag else 0 for flag in flags)


def _family_numbers(k: Keys, reads: Mapping[str, float]) -> dict[str, Any]:
    neutrals = {f.name: f.default for f in fields(HParams)}
    values: dict[str, float] = {}
    for name, key in FAMILY_KEYS.items():
        neutral: Any = neutrals[name]
        value = k.real(key, reads.get(name, neutral), least=0.0)
        if value != neutral and name not in reads:
            raise ModelError(
                f"{k.arch}.{key}: {value} changes the results, and the {k.arch} architecture has "
                f"no such number; expected {neutral}"
            )
        values[name] = value
    return values


def _rope_scaling(k: Keys) -> dict[str, Any]:
    """Parameters of the rope op for linear and YaRN scaling; a type left out means linear."""
    kind = k.text("rope.scaling.type", "linear")
    if kind not in ("none", "", "linear", "yarn", "llama3"):
        raise ModelError(f"{k.arch}.rope.scaling.type: {show(kind)} is not supported")
    linear = k.real("rope.scale_linear", 0.0, least=0.0, most=_MAX_STRETCH)
    factor = k.real("rope.scaling.factor", linear, least=0.0, most=_MAX_STRETCH) or 1.0
    if factor < 1 / _MAX_STRETCH:
        raise k.out_of_range("rope.scaling.factor", str(factor), 1 / _MAX_STRETCH, _MAX_STRETCH)
    attn_factor = k.real("rope.scaling.attn_factor", 1.0)
    scaling: dict[str, Any] = {} if attn_factor == 1.0 else {"attn_factor": attn_factor}
    if kind not in ("linear", "yarn") or factor == 1.0:
        return scaling  # llama3: the file carries the frequency factors as a tensor
    scaling["freq_scale"] = 1.0 / factor
    if kind == "yarn":
        scaling["ext_factor"] = 1.0
        # Turns within the original context; the frequencies between the two are mixed.
        bounds = {"least": 1 / _MAX_STRETCH, "most": _MAX_STRETCH}
        scaling["beta_fast"] = k.real("rope.scaling.yarn_beta_fast", 32.0, **bounds)
        scaling["beta_slow"] = k.real("rope.scaling.yarn_beta_slow", 1.0, **bounds)
        scaling["n_ctx_orig"] = k.integer(
            "rope.scaling.original_context_length", k.integer("context_length"), least=1
        )
    return scaling


def hparam_keys(hp: HParams, eps_key: str, reads: Collection[str]) -> Iterator[tuple[str, Any]]:
    """The keys that describe `hp` in a file, without those of rope scaling; see `read_hparams`."""

    def of(name: str) -> Any:
        return list(hp.by_layer[name]) if name in hp.by_layer else getattr(hp, name)

    yield "general.architecture", hp.arch
    for key, value in (
        ("context_length", hp.n_ctx_train), ("embedding_length", hp.n_embd),
        ("block_count", hp.n_layer), ("feed_forward_length", of("n_ff")),
        ("attention.head_count", of("n_head")), ("attention.head_count_kv", of("n_head_kv")),
        ("attention.key_length", hp.head_dim), ("attention.value_length", hp.head_dim_v),
        (eps_key, hp.norm_eps), ("rope.dimension_count", hp.rope_dims),
        ("rope.freq_base", hp.rope_base), ("vocab_size", hp.n_vocab),
    ):  # fmt: skip
        yield f"{hp.arch}.{key}", value
    if not hp.causal:
        yield f"{hp.arch}.attention.causal", False
    if hp.sliding_window:
        yield f"{hp.arch}.attention.sliding_window", hp.sliding_window
        if "sliding_window" in hp.by_layer:
            flags = [window > 0 for window in hp.by_layer["sliding_window"]]
            yield f"{hp.arch}.attention.sliding_window_pattern", flags
    for name, key in FAMILY_KEYS.items():
        if name in reads:
            yield f"{hp.arch}.{key}", getattr(hp, name)
    parts = (
        expert_keys(hp.experts) if hp.experts else (),
        recurrent_keys(hp.recurrent) if hp.recurrent else (),
        latent_keys(hp.latent) if hp.latent else (),
    )
    for part in parts:
        yield from ((f"{hp.arch}.{key}", value) for key, value in part)
