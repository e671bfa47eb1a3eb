"""The LLaMA architecture in torch, with parameters named as GGUF names its tensors.

RMSNorm before each half of a block, rotary positions on adjacent pairs (GGUF's "norm" rope, so
the weights need no permutation), grouped key/value heads, a gated feed-forward layer, and an
output matrix tied to the token embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {"silu": F.silu, "relu": F.relu}


@dataclass
class Config:
    """Hyperparameters. Every matrix's input size is a multiple of 256, as K-quants need."""

    n_vocab: int = 4096
    n_ctx: int = 1024
    dim: int = 256
    n_layer: int = 9
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 768
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    activation: str = "silu"  # or "relu": relu(gate) * up

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_head


def rope_table(config: Config) -> Tensor:
    """cos and sin of position * base^(-2i/head_dim): f32 [2, n_ctx, head_dim / 2]."""
    exponent = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angle = torch.outer(torch.arange(config.n_ctx).float(), config.rope_base**-exponent)
    return torch.stack([angle.cos(), angle.sin()])


def rope(x: Tensor, table: Tensor) -> Tensor:
    """Rotates adjacent pairs of x [batch, n_head, n_tok, head_dim] by their positions."""
    cos, sin = table[:, : x.shape[-2]]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    """One transformer layer: x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: Config, dropout: float) -> None:
        super().__init__()
        c, kv_dim = config, config.head_dim * config.n_head_kv
        self.config, self.dropout = config, dropout
        self.attn_norm = nn.RMSNorm(c.dim, c.norm_eps)
        self.attn_q = nn.Linear(c.dim, c.dim, bias=False)
        self.attn_k = nn.Linear(c.dim, kv_dim, bias=False)
        self.attn_v = nn.Linear(c.dim, kv_dim, bias=False)
        self.attn_output = nn.Linear(c.dim, c.dim, bias=False)
        self.ffn_norm = nn.RMSNorm(c.dim, c.norm_eps)
        self.ffn_gate = nn.Linear(c.dim, c.n_ff, bias=False)
        self.ffn_up = nn.Linear(c.dim, c.n_ff, bias=False)
        self.ffn_down = nn.Linear(c.n_ff, c.dim, bias=False)

    def attention(self, x: Tensor, table: Tensor) -> Tensor:
        c = self.config
        q, k, v = (
            proj(x).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
            for proj in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rope(q, table), rope(k, table)
        k, v = (t.repeat_interleave(c.n_head // c.n_head_kv, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_output(out.transpose(1, 2).flatten(-2))

    def neurons(self, x: Tensor) -> Tensor:
        """act(gate) * up of the normed input x [.., dim]: [.., n_ff]."""
        return ACTIVATIONS[self.config.activation](self.ffn_gate(x)) * self.ffn_up(x)

    def firing(self, hidden: Tensor, out: Tensor) -> Tensor:
        """f32 [2]: what the neurons cost, and the share of them that fire.

        The cost is the L1 norm of the neurons' contributions |hidden_j| * |down_j|, a token's
        mean, in units of the layer's output norm. Contributions rather than `hidden` alone,
        because shrinking `up` and growing `down` would please a plain L1 norm for nothing.
        """
        reach = self.ffn_down.weight.norm(dim=0)
        cost = (hidden.abs().float() * reach).sum(-1).mean()
        unit = out.detach().float().norm(dim=-1).mean()
        return torch.stack([cost / (unit + 1e-6), (hidden != 0).float().mean()])

    def forward(self, x: Tensor, table: Tensor, firing: bool) -> tuple[Tensor, Tensor | None]:
        x = x + F.dropout(self.attention(self.attn_norm(x), table), self.dropout, self.training)
        hidden = self.neurons(self.ffn_norm(x))
        out = self.ffn_down(hidden)
        x = x + F.dropout(out, self.dropout, self.training)
        return x, self.firing(hidden, out) if firing else None


class Llama(nn.Module):
    """Token ids int64 [batch, n_tok] -> logits [batch, n_tok, n_vocab]."""

    def __init__(self, config: Config, dropout: float = 0.0) -> None:
        super().__init__()
        self.config, self.dropout = config, dropout
        self.token_embd = nn.Embedding(config.n_vocab, config.dim)
        self.blk = nn.ModuleList(Block(config, dropout) for _ in range(config.n_layer))
        self.output_norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.register_buffer("rope_table", rope_table(config), persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                # GPT-2's rule: what adds into the residual stream starts smaller with depth.
                residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * config.n_layer) if residual else 0.02)

    def forward(self, ids: Tensor, firing: bool = False):
        """The logits; with `firing` also every block's `Block.firing`: f32 [n_layer, 2]."""
        x = F.dropout(self.token_embd(ids), self.dropout, self.training)
        rows = []
        for block in self.blk:
            x, row = block(x, self.rope_table, firing)
            rows.append(row)
        logits = F.linear(self.output_norm(x), self.token_embd.weight)
        return (logits, torch.stack(rows)) if firing else logits
