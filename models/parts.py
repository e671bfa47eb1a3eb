"""Hyperparameters of parts that only some families have: experts, recurrent layers, latents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gguflow.engine.dataclass import dataclass

from .keys import Keys, ModelError

SCORES = {1: "softmax", 2: "sigmoid", 3: "chosen"}  # expert_gating_func; 3: of the chosen alone


@dataclass(frozen=True)
class Experts:
    """Feed-forward layers of which a token goes through a few.

    n_ff: neurons of an expert. n_ff_shared: of the one that every token goes through; 0 for none.
    score, norm, scale, n_group, n_group_used: see the ops `route` and `route_weights`. n_dense: the
    first layers so many have no experts; every: of those after them, every n-th of all layers has.
    """

    n: int = 0
    n_used: int = 0
    n_ff: int = 0
    n_ff_shared: int = 0
    score: str = "softmax"
    norm: bool = True
    scale: float = 1.0
    n_group: int = 1
    n_group_used: int = 1
    n_dense: int = 0
    every: int = 1


def read_experts(k: Keys, n_ff: int, usual: Experts) -> Experts | None:
    """The experts of a file; None if it has none. n_ff: of its feed-forward layers. usual: what the
    family means by keys that are left out. Raises ModelError naming the key."""
    n = k.integer("expert_count", 0, most=1 << 16)
    if not n:
        return None
    n_used = k.integer("expert_used_count", least=1, most=n)
    wide = k.integer("expert_feed_forward_length", n_ff, most=1 << 22) or n_ff
    shared = wide * k.integer("expert_shared_count", 0, most=1 << 10)
    shared = k.integer("expert_shared_feed_forward_length", 0, most=1 << 22) or shared
    gating = k.integer("expert_gating_func", 0)
    if gating and gating not in SCORES:
        raise ModelError(f"{k.arch}.expert_gating_func: {gating} is not known; have 1 to 3")
    groups = k.integer("expert_group_count", 1) or 1
    if n % groups:
        raise ModelError(f"{k.arch}.expert_group_count: {groups} does not divide {n} experts")
    groups_used = k.integer("expert_group_used_count", groups, most=groups) or groups
    if n_used > n // groups * groups_used:
        raise ModelError(f"{k.arch}.expert_used_count: {n_used} experts of {groups_used} groups")
    return Experts(
        n,
        n_used,
        wide,
        shared,
        SCORES[gating] if gating else usual.score,
        k.flag("expert_weights_norm", usual.norm),
        # 0, as some files have it, stands for a number that was not set.
        k.real("expert_weights_scale", usual.scale, least=0.0) or 1.0,
        groups,
        groups_used,
        k.integer("leading_dense_block_count", usual.n_dense, most=1 << 12),
        k.integer("interleave_moe_layer_step", 1, least=1, most=1 << 12),
    )


def expert_keys(e: Experts) -> Iterator[tuple[str, Any]]:
    """The keys that `read_experts` reads."""
    yield "expert_count", e.n
    yield "expert_used_count", e.n_used
    yield "expert_feed_forward_length", e.n_ff
    yield "expert_shared_feed_forward_length", e.n_ff_shared
    yield "expert_gating_func", next(i for i, name in SCORES.items() if name == e.score)
    yield "expert_weights_norm", e.norm
    yield "expert_weights_scale", e.scale
    yield "expert_group_count", e.n_group
    yield "expert_group_used_count", e.n_group_used
    yield "leading_dense_block_count", e.n_dense
    yield "interleave_moe_layer_step", e.every


@dataclass(frozen=True)
class Recurrent:
    """Layers with a state of a fixed size.

    n_conv: tokens that the convolution before it sees. n_head, head_dim: of values; n_group,
    n_state: of keys and queries, of which neighbouring heads share one.
    """

    n_conv: int
    n_head: int
    head_dim: int
    n_group: int
    n_state: int

    @property
    def n_inner(self) -> int:
        return self.n_head * self.head_dim

    @property
    def n_mixed(self) -> int:
        """Channels of the convolution: values, keys and queries."""
        return self.n_inner + 2 * self.n_group * self.n_state


def read_recurrent(k: Keys) -> Recurrent:
    """Raises ModelError naming the key."""
    inner = k.integer("ssm.inner_size", least=1, most=1 << 22)
    n_head = k.integer("ssm.time_step_rank", least=1, most=1 << 16)
    groups = k.integer("ssm.group_count", 1, least=1, most=1 << 16)
    if inner % n_head:
        raise ModelError(f"{k.arch}.ssm.inner_size: {inner} are not {n_head} heads")
    if n_head % groups:
        raise ModelError(f"{k.arch}.ssm.group_count: {groups} does not divide {n_head} heads")
    n_conv = k.integer("ssm.conv_kernel", least=2, most=8)
    n_state = k.integer("ssm.state_size", least=1, most=1 << 12)
    return Recurrent(n_conv, n_head, inner // n_head, groups, n_state)


def recurrent_keys(r: Recurrent) -> Iterator[tuple[str, Any]]:
    """The keys that `read_recurrent` reads."""
    yield "ssm.inner_size", r.n_inner
    yield "ssm.time_step_rank", r.n_head
    yield "ssm.group_count", r.n_group
    yield "ssm.conv_kernel", r.n_conv
    yield "ssm.state_size", r.n_state


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values are products of one latent vector a token.

    n_q, n_kv: values of the latents that queries (0: none), keys and values are made of. head_dim:
    of queries and keys, of which the last `rope_dims` are rotated; head_dim_v: of values.
    """

    n_q: int
    n_kv: int
    head_dim: int
    head_dim_v: int


def read_latent(k: Keys) -> Latent:
    """Raises ModelError naming the key."""
    return Latent(
        k.integer("attention.q_lora_rank", 0, most=1 << 16),
        k.integer("attention.kv_lora_rank", least=1, most=1 << 16),
        k.integer("attention.key_length_mla", least=1, most=1 << 16),
        k.integer("attention.value_length_mla", least=1, most=1 << 16),
    )


def latent_keys(m: Latent) -> Iterator[tuple[str, Any]]:
    """The keys that `read_latent` reads."""
    yield "attention.q_lora_rank", m.n_q
    yield "attention.kv_lora_rank", m.n_kv
    yield "attention.key_length_mla", m.head_dim
    yield "attention.value_length_mla", m.head_dim_v
