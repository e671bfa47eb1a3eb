"""ReLU-Falcon: Falcon with ReLU in place of GELU, so that most neurons of a layer are zero.

PowerInfer's Falcon files (Song et al. 2023, arXiv 2312.12456) are this architecture. Their
predictors read what the layer's norm reads.
"""

from __future__ import annotations

from .falcon import Falcon
from .relu import ReluLayers


class ReluFalcon(ReluLayers, Falcon):
    name = "relufalcon"
    act = "relu"

    def layer_input(self, i: int) -> str:
        return "embd" if i == 0 else f"blk.{i - 1}.ffn.residual"
