"""LLaMA: Llama 1, 2 and 3.x, TinyLlama, SmolLM, Mistral and everything else of that shape.

Pre-norm decoder: x += attention(rms_norm(x)); x += swiglu_ffn(rms_norm(x)). Grouped heads, rotary
positions, optional biases, optional tied embeddings. Sources: Touvron et al. 2023 (arXiv
2302.13971, 2307.09288), Dubey et al. 2024 (arXiv 2407.21783), Jiang et al. 2023 (arXiv 2310.06825).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gguflow.engine.graph import Graph, Tensor

from .base import Architecture, WeightSpec
from .batch import Batch, Inputs


class Llama(Architecture):
    name = "llama"

    def weights(self) -> Iterator[WeightSpec]:
        hp = self.hp
        q_dim, v_dim = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim_v
        yield WeightSpec("token_embd.weight", (hp.n_vocab, hp.n_embd))
        yield WeightSpec("output_norm.weight", (hp.n_embd,))
        yield WeightSpec("output.weight", (hp.n_vocab, hp.n_embd), optional=True)
        yield WeightSpec("rope_freqs.weight", (hp.rope_dims // 2,), optional=True)
        for i in range(hp.n_layer):
            b = f"blk.{i}"
            yield WeightSpec(f"{b}.attn_norm.weight", (hp.n_embd,))
            for part, n in (("q", q_dim), ("k", hp.n_embd_kv), ("v", v_dim)):
                yield WeightSpec(f"{b}.attn_{part}.weight", (n, hp.n_embd))
                yield WeightSpec(f"{b}.attn_{part}.bias", (n,), optional=True)
            yield WeightSpec(f"{b}.attn_output.weight", (hp.n_embd, hp.n_head * hp.head_dim_v))
            yield WeightSpec(f"{b}.attn_output.bias", (hp.n_embd,), optional=True)
            yield WeightSpec(f"{b}.ffn_norm.weight", (hp.n_embd,))
            yield WeightSpec(f"{b}.ffn_gate.weight", (hp.n_ff, hp.n_embd))
            yield WeightSpec(f"{b}.ffn_up.weight", (hp.n_ff, hp.n_embd))
            yield WeightSpec(f"{b}.ffn_down.weight", (hp.n_embd, hp.n_ff))
            for part, n in (("gate", hp.n_ff), ("up", hp.n_ff), ("down", hp.n_embd)):
                yield WeightSpec(f"{b}.ffn_{part}.bias", (n,), optional=True)

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        inp = batch.inputs(g)
        x = g.get_rows(w["token_embd.weight"], inp.tokens, name="embd")
        for i in range(self.hp.n_layer):
            with g.scope(f"blk.{i}"):
                x = self.attention(g, w, inp, i, x)
                x = self.ffn(g, w, batch, i, x)
        x = self.norm(g, x, w["output_norm.weight"], "output_norm")
        head = w.get("output.weight", w["token_embd.weight"])  # absent: tied to the embeddings
        return g.mul_mat(head, x, name="logits")

    def attention(
        self, g: Graph, w: Mapping[str, Tensor], inp: Inputs, i: int, x: Tensor
    ) -> Tensor:
        """Grouped-query attention over the KV cache; returns x plus its output."""
        hp, n = self.hp, inp.key.n_tokens
        layer = self.cache(i)
        assert layer is not None
        kv = inp.kv(i, layer)
        with g.scope("attn"):
            h = self.norm(g, x, w[f"blk.{i}.attn_norm.weight"], "norm")
            k = self.linear(g, w, f"blk.{i}.attn_k", h, "k")
            v = self.linear(g, w, f"blk.{i}.attn_v", h, "v")
            pos, seq, n_single = inp.pos, inp.seq, inp.key.n_single
            if inp.key.picks and i == hp.n_layer - 1:
                # Past the last layer's keys and values only the rows to output matter.
                pos, seq, (h, x) = inp.picked(h, x)
                n_single = inp.key.n_out if inp.key.n_out <= inp.key.n_seqs else 0
            n_q = x.shape[0]
            q = self.linear(g, w, f"blk.{i}.attn_q", h, "q")
            q = g.reshape(q, (n_q, hp.n_head, hp.head_dim))
            k = g.reshape(k, (n, hp.n_head_kv, hp.head_dim))
            q, k = self.head_norms(g, w, i, q, k)
            q = self.rope(g, w, q, pos, "q_rope")
            k = self.rope(g, w, k, inp.pos, "k_rope")
            k_rows = g.set_rows(kv.k, g.reshape(k, (n, hp.n_embd_kv)), kv.rows, name="kv_k")
            v_rows = g.set_rows(kv.v, v, kv.rows, name="kv_v")
            n_rows = kv.k.shape[0]
            out = g.attention(
                q,
                g.reshape(k_rows, (n_rows, hp.n_head_kv, hp.head_dim)),
                g.reshape(v_rows, (n_rows, hp.n_head_kv, hp.head_dim_v)),
                pos,
                seq,
                kv.table,
                scale=1.0 / math.sqrt(hp.head_dim),
                window=hp.sliding_window,
                n_single=n_single,
                name="kqv",
            )
            out = g.reshape(out, (n_q, hp.n_head * hp.head_dim_v))
            out = self.linear(g, w, f"blk.{i}.attn_output", out, "out")
            return g.add(out, x, name="residual")

    def ffn(self, g: Graph, w: Mapping[str, Tensor], batch: Batch, i: int, x: Tensor) -> Tensor:
        """SwiGLU feed-forward (Shazeer 2020, arXiv 2002.05202); returns x plus its output."""
        with g.scope("ffn"):
            h = self.norm(g, x, w[f"blk.{i}.ffn_norm.weight"], "norm")
            gate = self.linear(g, w, f"blk.{i}.ffn_gate", h, "gate")
            up = self.linear(g, w, f"blk.{i}.ffn_up", h, "up")
            h = g.mul(g.silu(gate, name="act"), up, name="swiglu")
            out = self.linear(g, w, f"blk.{i}.ffn_down", h, "down")
            return g.add(out, x, name="residual")

    # -- parts that related architectures change ---------------------------------------------------

    def norm(self, g: Graph, x: Tensor, weight: Tensor, name: str) -> Tensor:
        return g.mul(g.rms_norm(x, eps=self.hp.norm_eps, name=f"{name}_rms"), weight, name=name)

    def linear(
        self, g: Graph, w: Mapping[str, Tensor], prefix: str, x: Tensor, name: str
    ) -> Tensor:
        """W x, plus the bias when the file has one."""
        bias = w.get(f"{prefix}.bias")
        y = g.mul_mat(w[f"{prefix}.weight"], x, name=name if bias is None else f"{name}_mm")
        return y if bias is None else g.add(y, bias, name=name)

    def head_norms(
        self, g: Graph, w: Mapping[str, Tensor], i: int, q: Tensor, k: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Norms of each query and key head, for architectures that have them."""
        return q, k

    def rope(self, g: Graph, w: Mapping[str, Tensor], x: Tensor, pos: Tensor, name: str) -> Tensor:
        hp = self.hp
        return g.rope(x, pos, w.get("rope_freqs.weight"), n_dims=hp.rope_dims, mode=self.rope_mode,
                      freq_base=hp.rope_base, name=name, **hp.rope_scaling)  # fmt: skip
