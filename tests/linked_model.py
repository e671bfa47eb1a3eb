"""What the tests of linked runs share: a tiny model that a device and the CPU compute together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguflow.engine.graph import F32
from gguflow.engine.model import Model
from gguflow.engine.plan_key import step_key
from gguflow.engine.profile import Profile

IDS = [1, 9, 17, 33, 40, 7, 7, 60, 12, 3]


@dataclass(frozen=True)
class Pair:
    """The CPU does the feed-forward blocks, `device` the rest."""

    device: str

    @property
    def overrides(self) -> tuple[tuple[str, str], ...]:
        return (r"\.ffn\.", "cpu"), (".*", self.device)

    def load(self, path: Path, **options: Any) -> Model:
        given = {"overrides": self.overrides, "n_threads": 2, "k_type": F32, "v_type": F32}
        return Model.load(path, backends=(self.device, "cpu"), **given | options)

    def unlinked(self, monkeypatch: pytest.MonkeyPatch, path: Path, **options: Any) -> np.ndarray:
        """`steps`, the two in turns."""
        with monkeypatch.context() as m:
            m.setenv("GGUFLOW_LINK", "0")
            return steps(self.load(path, **options))

    def random_overrides(self, path: Path, rng: np.random.Generator) -> list[tuple[str, str]]:
        """Any node on the CPU, by chance."""
        free = [
            n.name
            for n in self.load(path, overrides=()).plan(step_key(1, "last", False)).nodes
            if n.view_of is None and "qkv" not in n.name and "rope" not in n.name
        ]
        chosen = [n for n in free if rng.random() < 0.3]
        return [*((rf"^{re.escape(n)}$", "cpu") for n in chosen), (".*", self.device)]


def steps(model: Model, profile: Profile | None = None) -> np.ndarray:
    """Logits of single-token steps."""
    s = model.new_session(profile)
    return np.stack([s.step((t,), "last")[0][0].copy() for t in IDS])
