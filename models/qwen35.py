"""Qwen3.5: Qwen3-Next without experts; positions of text are the same in all of the sections of
rope that images need.

Source: Qwen team 2026, "Qwen3.5".
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from .hparams import HParams
from .parts import Experts
from .qwen3next import Qwen3Next


class Qwen35(Qwen3Next):
    name = "qwen35"
    routing: ClassVar[Experts | None] = None
    joined = False
    tiled = True

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), experts=None)
