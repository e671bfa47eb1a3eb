"""The code books of the IQ1, IQ2 and IQ3 types, as the `gguf` package has them.

A code of these types names a row of a grid: eight (IQ3: four) of a few values each. The native
kernels have the same numbers in `kernels/quants/grid_*.h`, which `tests/quants/make_grids.py`
writes.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gguflow.engine.dataclass import dataclass

OWNERS = {
    "iq1": "IQ1_S", "iq2_xxs": "IQ2_XXS", "iq2_xs": "IQ2_XS", "iq2_s": "IQ2_S",
    "iq3_xxs": "IQ3_XXS", "iq3_s": "IQ3_S",
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """codes: uint8 [rows, 8 or 4], places in `values`."""

    values: np.ndarray
    codes: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """float32 of the shape of `codes`."""
        found: np.ndarray = self.values[self.codes].astype(np.float32)
        return found


@cache
def grid(name: str) -> Grid:
    """One of OWNERS."""
    # Imported when first needed: few files hold these types.
    from gguf import quants

    owner = getattr(quants, OWNERS[name])
    owner.init_grid()
    values = np.array(owner.grid_map, np.int8)
    rows = owner.grid.reshape(owner.grid_shape).astype(np.int8)
    codes = np.searchsorted(values, rows).astype(np.uint8)
    return Grid(values, codes)


@cache
def grid_rows(name: str) -> np.ndarray:
    """The rows of a grid, float32."""
    return grid(name).rows


def even_signs(code: np.ndarray) -> np.ndarray:
    """Seven signs [..] -> eight [.., 8] as float32: the eighth makes the negative ones even."""
    code = code.astype(np.uint8)
    parity = np.bitwise_xor.reduce(code[..., None] >> np.arange(7, dtype=np.uint8) & 1, axis=-1)
    return signs(code | parity << 7)


def signs(code: np.ndarray) -> np.ndarray:
    """Bits of uint8 [..] -> float32 [.., 8], -1 where a bit is set."""
    bits = code[..., None] >> np.arange(8, dtype=np.uint8) & 1
    return np.where(bits == 1, np.float32(-1), np.float32(1))
