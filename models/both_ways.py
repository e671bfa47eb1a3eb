"""Models whose prompts are read in both directions (`attention.causal` = false): prefix language
models. Tokens of a prompt see all of it, generated ones what stands before them."""

from __future__ import annotations

from .base import Architecture
from .batch import StateLayer
from .decoder import Decoder
from .keys import ModelError


def check_both_ways(arch: Architecture) -> None:
    """Raises ModelError for a layer that has no such form: how far a token looks ahead, what lies
    ahead costs, or what a state has seen is then another question, which no key answers."""
    hp = arch.hp
    if hp.causal:
        return
    for i in range(hp.n_layer):
        layer = arch.cache(i)
        what = ""
        if isinstance(layer, StateLayer):
            what = "recurrent layers"
        elif layer is not None and layer.window:
            what = "sliding windows"
        elif isinstance(arch, Decoder) and arch.layer_hparams(i).alibi_bias:
            what = "ALiBi"
        if what:
            raise ModelError(
                f"{hp.arch}.attention.causal: false; {what} in both directions are not supported"
            )
