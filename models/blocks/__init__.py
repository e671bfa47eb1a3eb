"""What decoders are composed of: each block is a function with arguments for what families vary.

A block records ops at a `Site` and returns their result. Weights decide for themselves: a bias is
added, heads are normed, a gate is applied, where the family lists them and the file has them.
"""

from .attention import attend, attention, attention_weights, cache_layer, head_norm_weights, rope
from .ends import embed, end_weights, logits
from .experts import expert_weights, experts
from .ffn import ffn, ffn_weights
from .latent import latent_attention, latent_cache, latent_weights
from .linear import linear, linear_weights, residual
from .norm import LAYER_NORM, RMS_NORM, Norm
from .recurrent import (
    delta_net,
    delta_net_weights,
    recurrent_cache,
    scan_mixer,
    scan_mixer_weights,
)
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
    "delta_net",
    "delta_net_weights",
    "embed",
    "end_weights",
    "expert_weights",
    "experts",
    "ffn",
    "ffn_weights",
    "head_norm_weights",
    "latent_attention",
    "latent_cache",
    "latent_weights",
    "linear",
    "linear_weights",
    "logits",
    "scan_mixer",
    "scan_mixer_weights",
    "recurrent_cache",
    "residual",
    "rope",
]
