"""What decoders are composed of: each block is a function with arguments for what families vary.

A block records ops at a `Site` and returns their result. Weights decide for themselves: a bias is
added, heads are normed, a gate is applied, where the family lists them and the file has them.
"""

from .attention import attend, attention, attention_weights, cache_layer, head_norm_weights, rope
from .ends import embed, end_weights, logits
from .ffn import ffn, ffn_weights
from .linear import linear, linear_weights, residual
from .norm import LAYER_NORM, RMS_NORM, Norm
from .site import Site

__all__ = [
    "LAYER_NORM",
    "RMS_NORM",
    "Norm",
    "Site",
    "attend",
    "attention",
    "attention_weights",
    "cache_layer",
    "embed",
    "end_weights",
    "ffn",
    "ffn_weights",
    "head_norm_weights",
    "linear",
    "linear_weights",
    "logits",
    "residual",
    "rope",
]
