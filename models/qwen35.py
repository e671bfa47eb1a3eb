"""Qwen3.5: Qwen3-Next without experts; positions of text are the same in all of the sections of
rope that images need.

Source: Qwen team 2026, "Qwen3.5".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from gguflow.engine.dataclass import replace

from .hparams import HParams
from .parts import Experts
from .qwen3next import Qwen3Next

SECTIONS = [11, 11, 10, 0]  # of rope, for images


class Qwen35(Qwen3Next):
    name = "qwen35"
    routing: ClassVar[Experts | None] = None
    joined = False
    tiled = True

    def keys(self) -> Iterator[tuple[str, Any]]:
        yield from super().keys()
        yield f"{self.hp.arch}.rope.dimension_sections", SECTIONS  # other programs ask for them

    @classmethod
    def tiny(cls) -> HParams:
        return replace(super().tiny(), experts=None)
