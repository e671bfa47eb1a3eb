"""Gemma 4: Gemma 3 with heads of another size in the layers without a window; values that are
normed and may be the keys; later layers that attend over what earlier ones cached; experts beside
the feed-forward layer in some; embeddings of their own for every layer in some; a scale for each.

Source: Gemma team 2026, "Gemma 4" model card and the implementation in transformers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Self

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import Graph, Tensor

from .base import WeightSpec
from .batch import Batch, CacheLayer
from .blocks import (
    Site,
    attention_weights,
    cache_layer,
    expert_weights,
    experts,
    ffn,
    ffn_weights,
    head_norm_weights,
    linear,
    linear_weights,
    residual,
)
from .blocks.attention import attend, attend_over, heads, rope
from .blocks.linear import scaled
from .gemma import Gemma
from .hparams import HParams
from .keys import Keys, ModelError
from .parts import Experts

PER_LAYER = "per_layer_token_embd.weight"
_KEYS = re.compile(r"blk\.(\d+)\.attn_k(?:_norm)?\.weight")


@dataclass(frozen=True)
class Gemma4Keys:
    """head_dim, rope_dims: of layers with a window. n_shared: of the last layers, those that attend
    over what an earlier one cached. n_embd_layer: values that every layer has of each token; 0 for
    none."""

    head_dim: int
    rope_dims: int
    n_shared: int = 0
    n_embd_layer: int = 0


class Gemma4(Gemma):
    name = "gemma4"
    post_norms = True
    routing = Experts(score="softmax", norm=True)
    reads = {"logit_softcap": 0.0, "rope_base_window": 10000.0, "sliding_window": 512}

    def __init__(self, hp: HParams, own: Gemma4Keys | None = None) -> None:
        super().__init__(hp)
        self.own = own or Gemma4Keys(2 * hp.head_dim, 2 * hp.rope_dims, 2, 8)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        k, hp = Keys(metadata, cls.name), super().from_metadata(metadata, n_vocab).hp
        head_dim = k.integer("attention.key_length_swa", hp.head_dim, least=2, most=1 << 16)
        values = k.integer("attention.value_length_swa", head_dim, least=2, most=1 << 16)
        if values != head_dim or hp.head_dim_v != hp.head_dim:
            raise ModelError(
                f"{cls.name}.attention.value_length_swa: values of {values} and {hp.head_dim_v} "
                f"for keys of {head_dim} and {hp.head_dim}; expected the same sizes"
            )
        own = Gemma4Keys(
            head_dim,
            k.integer("rope.dimension_count_swa", head_dim, least=2, most=head_dim),
            k.integer("attention.shared_kv_layers", 0, most=hp.n_layer - 1),
            k.integer("embedding_length_per_layer_input", 0, most=1 << 16),
        )
        arch = cls(hp, own)
        for i in range(hp.n_layer):
            arch.source_of(i)
        return arch

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from super().keys()
        for key, value in (
            ("attention.key_length_swa", self.own.head_dim),
            ("attention.value_length_swa", self.own.head_dim),
            ("rope.dimension_count_swa", self.own.rope_dims),
            ("attention.shared_kv_layers", self.own.n_shared),
            ("embedding_length_per_layer_input", self.own.n_embd_layer),
        ):
            yield f"{self.name}.{key}", value

    def layer_hparams(self, i: int) -> HParams:
        hp, own = replace(super().layer_hparams(i), attn_scale=1.0), self.own
        if not hp.sliding_window:
            return hp
        return replace(
            hp, head_dim=own.head_dim, head_dim_v=own.head_dim, rope_dims=own.rope_dims,
            rope_base=hp.rope_base_window, rope_scaling={},
        )  # fmt: skip

    def source_of(self, i: int) -> int:
        """The layer over whose keys and values layer i attends: itself, or of those before the
        layers that share the last one of its kind."""
        first = self.hp.n_layer - self.own.n_shared
        if i < first:
            return i
        window = self.layer_hparams(i).sliding_window
        for j in reversed(range(first)):
            if self.layer_hparams(j).sliding_window == window:
                return j
        raise ModelError(
            f"{self.name}.attention.shared_kv_layers: no layer before the last {self.own.n_shared} "
            f"has keys for layer {i}"
        )

    # -- weights ---------------------------------------------------------------------------------

    def weights(self) -> Iterator[WeightSpec]:
        n, m = self.own.n_embd_layer, self.hp.n_layer
        if n:
            yield WeightSpec(PER_LAYER, (self.hp.n_vocab, m * n))
            yield WeightSpec("per_layer_model_proj.weight", (m * n, self.hp.n_embd))
            yield from self.norm.weights("per_layer_proj_norm", n)
        for spec in super().weights():
            found = _KEYS.fullmatch(spec.name)  # only layers that share have none of their own
            own = found is not None and self.source_of(int(found[1])) == int(found[1])
            yield replace(spec, optional=False) if own else spec

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        for spec in (*attention_weights(hp), *head_norm_weights(hp.head_dim, hp.head_dim)):
            # Layers that share have no keys of their own, and values may be the keys.
            shared = spec.name.startswith(("attn_k", "attn_v"))
            yield replace(spec, optional=True) if shared else spec
        yield from self.norm.weights("post_attention_norm", hp.n_embd)
        yield from self.norm.weights("ffn_norm", hp.n_embd)
        yield from ffn_weights(hp, gated=True)
        yield from self.norm.weights("post_ffw_norm", hp.n_embd)
        if hp.experts is not None:
            yield from expert_weights(hp, hp.experts)
            yield WeightSpec("ffn_gate_inp.scale", (hp.n_embd,))
            yield WeightSpec("ffn_down_exps.scale", (hp.experts.n,), optional=True)
            for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                yield from self.norm.weights(name, hp.n_embd)
        if n := self.own.n_embd_layer:
            yield from linear_weights("inp_gate", n, hp.n_embd)
            yield from linear_weights("proj", hp.n_embd, n)
            yield from self.norm.weights("post_norm", hp.n_embd)
        yield WeightSpec("layer_output_scale.weight", (1,), optional=True)

    # -- graph -----------------------------------------------------------------------------------

    def cache(self, i: int) -> CacheLayer | None:
        return cache_layer(self.layer_hparams(i)) if self.source_of(i) == i else None

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        ends = Site(g, w, batch.inputs(g, self.hp.causal), self.hp)
        x = self.embed(ends)
        of_layers = self.of_layers(ends, x) if self.own.n_embd_layer else None
        for i in range(self.hp.n_layer):
            with g.scope(f"blk.{i}"):
                at = replace(ends, hp=self.layer_hparams(i), i=i)
                x = self.layer(at, x)
                if of_layers is not None:
                    x = self.with_own(at, x, of_layers)
                scale = at.find("layer_output_scale.weight")
                x = x if scale is None else g.mul(x, scale, name="scaled")
        return self.logits(ends, x)

    def of_layers(self, at: Site, x: Tensor) -> Tensor:
        """What each layer has of each token: f32 [n_tokens, n_layer, n]. Half of it is looked up,
        the other half made of the embeddings x."""
        g, n, m = at.g, self.own.n_embd_layer, self.hp.n_layer
        with g.scope("per_layer"):
            found = g.get_rows(at.weight(PER_LAYER), at.inp.tokens, name="embd")
            found = scaled(at, found, math.sqrt(n), "embd_scaled")
            made = linear(at, "per_layer_model_proj", x, "proj")
            made = scaled(at, made, self.hp.n_embd**-0.5, "proj_scaled")
            made = g.reshape(made, (made.shape[0], m, n))
            made = self.norm(at, "per_layer_proj_norm", made, "proj_norm")
            both = g.add(made, g.reshape(found, made.shape), name="both")
            return scaled(at, both, 2**-0.5, "both_scaled")

    def with_own(self, at: Site, x: Tensor, of_layers: Tensor) -> Tensor:
        """x plus what the layer makes of its own embeddings."""
        g = at.g
        with g.scope("own"):
            mine = g.cont(g.slice(of_layers, 1, at.i, at.i + 1), name="embd")
            mine = at.attended(g.reshape(mine, (mine.shape[0], mine.shape[2])))
            out = g.mul(g.gelu(linear(at, "inp_gate", x, "gate"), name="act"), mine, name="geglu")
            out = self.norm(at, "post_norm", linear(at, "proj", out, "out"), "post_norm")
            return residual(at, x, out)

    def attend(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            out = self.attention(at, self.norm(at, "attn_norm", x))
            out = self.norm(at, "post_attention_norm", out, "post_norm")
            return residual(at, x, out)

    def attention(self, at: Site, h: Tensor) -> Tensor:
        """Over the layer's own keys and values, or those of the layer that it shares them with."""
        g, hp, inp = at.g, at.hp, at.inp
        whole, n_tokens = not hp.sliding_window, inp.key.n_tokens
        h_q = at.needed(h)
        here = inp.rows if h_q.shape[0] == n_tokens else inp.out_rows
        q = heads(at, linear(at, "attn_q", h_q, "q"), hp.n_head, "q", self.norm)
        q = rope(at, q, here.pos, self.rope_mode, "q_rope", whole)
        source = self.source_of(at.i)
        if source != at.i:
            kv = inp.kv(source, cache_layer(hp))
            assert kv.v is not None
            return linear(at, "attn_output", attend_over(at, q, kv.k, kv.v, kv.table, here), "out")
        made = linear(at, "attn_k", h, "k")
        v = made if at.find("attn_v.weight") is None else linear(at, "attn_v", h, "v")
        k = heads(at, made, hp.n_head_kv, "k", self.norm)
        k = rope(at, k, inp.rows.pos, self.rope_mode, "k_rope", whole)
        v = g.reshape(v, (n_tokens, hp.n_head_kv, hp.head_dim_v))
        v = g.reshape(g.rms_norm(v, eps=hp.norm_eps, name="v_norm"), (n_tokens, -1))
        return linear(at, "attn_output", attend(at, q, k, v, here), "out")

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            out = ffn(at, self.norm(at, "ffn_norm", x), act=self.act)
            if at.hp.experts is not None:
                out = self.norm(at, "post_ffw_norm_1", out, "post_norm_1")
                out = at.g.add(out, self.experts(at, x), name="with_experts")
            return residual(at, x, self.norm(at, "post_ffw_norm", out, "post_norm"))

    def experts(self, at: Site, x: Tensor) -> Tensor:
        """Of norms of their own; what the router sees is scaled by channel."""
        g, hp = at.g, at.hp
        with g.scope("moe"):
            seen = g.mul(
                g.rms_norm(x, eps=hp.norm_eps, name="router_rms"),
                at.weight("ffn_gate_inp.scale"),
                name="router_norm",
            )
            seen = scaled(at, seen, hp.n_embd**-0.5, "router_in")
            out = experts(at, self.norm(at, "pre_ffw_norm_2", x), act=self.act, routed=seen)
            return self.norm(at, "post_ffw_norm_2", out, "post_norm")

    @classmethod
    def tiny(cls) -> HParams:
        return replace(
            super().tiny(), n_layer=5, head_dim=32, head_dim_v=32, rope_dims=32, sliding_window=8,
            rope_base_window=100.0, logit_softcap=3.0, experts=Experts(6, 2, 32),
            by_layer={"sliding_window": (8, 0, 8, 8, 0)},
        )  # fmt: skip
