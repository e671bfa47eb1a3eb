"""MiniCPM: Granite's scales, with numbers that follow from the sizes in files that leave them out.

Source: Hu et al. 2024 (arXiv 2404.06395).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from gguflow.engine.dataclass import replace

from .granite import Granite
from .hparams import FAMILY_KEYS, HParams
from .keys import Keys

EMBD_SCALE, DEPTH_SCALE, BASE_WIDTH = 12.0, 1.4, 256  # of the 1B and 2B models


class MiniCpm(Granite):
    name = "minicpm"
    reads: ClassVar = {"embd_scale": EMBD_SCALE, "residual_scale": 1.0, "logit_scale": 1.0}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Self:
        hp = super().from_metadata(metadata, n_vocab).hp
        k = Keys(metadata, cls.name)
        if k.find(FAMILY_KEYS["residual_scale"]) is None:
            hp = replace(hp, residual_scale=DEPTH_SCALE / math.sqrt(hp.n_layer))
        if k.find(FAMILY_KEYS["logit_scale"]) is None:
            hp = replace(hp, logit_scale=hp.n_embd / BASE_WIDTH)
        return cls(hp)

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), attn_scale=0.0)
