"""The two forms of a layer: attention, then feed-forward; or both of the same input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import Tensor

from .base import WeightSpec
from .blocks import (
    Site,
    attention,
    attention_weights,
    expert_weights,
    experts,
    ffn,
    ffn_weights,
    residual,
)
from .decoder import Decoder
from .hparams import HParams


class Sequential(Decoder):
    """x += attention(norm(x)); x += ffn(norm(x)).

    post_norms: x += norm(attention(norm(x))) and so on.
    """

    post_norms: ClassVar[bool] = False

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        yield from attention_weights(hp)
        yield from self.norm.weights("ffn_norm", hp.n_embd)
        if hp.experts is None:
            yield from ffn_weights(hp, gated=self.gated)
        else:
            yield from expert_weights(hp, hp.experts)
        if self.post_norms:
            yield from self.norm.weights("post_attention_norm", hp.n_embd)
            yield from self.norm.weights("post_ffw_norm", hp.n_embd)

    def layer(self, at: Site, x: Tensor) -> Tensor:
        return self.feed_forward(at, at.attended(self.attend(at, x)))

    def attend(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            out = attention(at, self.norm(at, "attn_norm", x), rope_mode=self.rope_mode)
            if self.post_norms:
                out = self.norm(at, "post_attention_norm", out, "post_norm")
            return residual(at, x, out)

    def feed_forward(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("ffn"):
            out = self.mix(at, self.norm(at, "ffn_norm", x))
            if self.post_norms:
                out = self.norm(at, "post_ffw_norm", out, "post_norm")
            return residual(at, x, out)

    def mix(self, at: Site, h: Tensor) -> Tensor:
        """The feed-forward layer of a normed input, of experts where there are any."""
        return (ffn if at.hp.experts is None else experts)(at, h, act=self.act)


class Parallel(Decoder):
    """x += attention(h) + ffn(h), h = norm(x).

    two_norms: attention has a norm of its own, `attn_norm_2`, where the file has it.
    """

    two_norms: ClassVar[bool] = False

    def layer_weights(self, hp: HParams) -> Iterator[WeightSpec]:
        yield from self.norm.weights("attn_norm", hp.n_embd)
        if self.two_norms:
            for spec in self.norm.weights("attn_norm_2", hp.n_embd):
                yield replace(spec, optional=True)
        yield from attention_weights(hp)
        yield from ffn_weights(hp, gated=self.gated)

    def layer(self, at: Site, x: Tensor) -> Tensor:
        with at.g.scope("attn"):
            h = self.norm(at, "attn_norm", x)
            own = at.find("attn_norm_2.weight") is not None
            mine = self.norm(at, "attn_norm_2", x, "norm_2") if own else h
            x = residual(at, x, attention(at, mine, rope_mode=self.rope_mode))
        with at.g.scope("ffn"):
            return residual(at, x, self.mix(at, at.needed(h)))

    def mix(self, at: Site, h: Tensor) -> Tensor:
        """The feed-forward layer of a normed input."""
        return ffn(at, h, act=self.act)
