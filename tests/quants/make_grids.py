"""Writes kernels/quants/grid_iq1.h, grid_iq2.h and grid_iq3.h from the `gguf` package's code books.

    python tests/quants/make_grids.py

A row is one number, four bits an element from the lowest up: the place of its value in the type's
short list of values, which is the selector that a byte permutation wants.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from gguflow.engine.quants.grids import Grid, grid

DIRECTORY = Path(str(files("gguflow.kernels.cuda"))).parent / "quants"

_QUARTER_SCALE = """\
// d times scale s of those that lie two to a byte.
GF_HD float gf_quarter_scale(gf_u16 d, const gf_u8* scales, int s) {
  return gf_f16_to_f32(d) * (0.5f + (float)(scales[s / 2] >> (s % 2 * 4) & 15)) * 0.25f;
}
"""


def _packed(values: np.ndarray) -> int:
    """Bytes of int8 values, the first the lowest."""
    return int.from_bytes(values.astype(np.int8).tobytes().ljust(8, b"\0"), "little")


def _table(name: str, g: Grid) -> str:
    n, width = g.codes.shape
    shifts = 4 * np.arange(width, dtype=np.uint64)
    numbers = (g.codes.astype(np.uint64) << shifts).sum(axis=1)
    digits, per_line = (8, 8) if width == 8 else (4, 12)
    words = [f"0x{int(v):0{digits}X}" for v in numbers]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, n, per_line)]
    kind = "gf_u32" if width == 8 else "gf_u16"
    body = ",\n    ".join(lines)
    return f"GF_TABLE {kind} gf_grid_{name}[{n}] = {{\n    {body}}};\n"


def headers() -> dict[str, str]:
    """The text of each header by file name."""
    iq1 = 8 * grid("iq1").values.astype(np.int16)
    constants = {
        "iq1": f"#define GF_IQ1_ABOVE 0x{_packed(iq1 + 1):08X}u  // 8 * (value + 1/8)\n"
               f"#define GF_IQ1_BELOW 0x{_packed(iq1 - 1):08X}u  // 8 * (value - 1/8)\n",
        "iq2": f"#define GF_IQ2_VALUES 0x{_packed(grid('iq2_xs').values):08X}u\n\n{_QUARTER_SCALE}",
        "iq3": "".join(
            f"#define GF_{n.upper()}_VALUES 0x{_packed(grid(n).values):016X}ull\n"
            for n in ("iq3_xxs", "iq3_s")
        ),
    }  # fmt: skip
    tables = {"iq1": ["iq1"], "iq2": ["iq2_xxs", "iq2_xs", "iq2_s"], "iq3": ["iq3_xxs", "iq3_s"]}
    found = {}
    for family, names in tables.items():
        parts = [
            f"// Written by make_grids.py: rows of the grids of {', '.join(names)}, four bits an\n"
            "// element, and the values (as bytes, the first lowest) that those are places of.\n"
            '// clang-format off\n#pragma once\n\n#include "grid.h"\n',
            constants[family],
            *(_table(n, grid(n)) for n in names),
        ]
        found[f"grid_{family}.h"] = "\n".join(parts)
    return found


if __name__ == "__main__":
    for name, text in headers().items():
        (DIRECTORY / name).write_text(text)
