"""The weights of a file as numbers: which are NaN or infinite, which are nothing but zeros."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from gguflow.engine.backends.base import Converter
from gguflow.engine.load import ModelSource
from gguflow.engine.load.source import WeightSource
from gguflow.engine.quants import decode

from .checks import Check, n_not_finite

PART_BYTES = 64 << 20  # of values as float32 at a time
SHOWN = 4

Progress = Callable[[int, int, str], None]


def weight_checks(
    source: ModelSource, converter: Converter | None, progress: Progress | None = None
) -> Iterator[Check]:
    """Looks at every weight once, a part at a time. converter: native code to read types with."""
    types = Counter(w.dtype.name for w in source.weights.values())
    kinds = ", ".join(f"{n} {name}" for name, n in types.most_common())
    yield Check("types", None, f"{len(source.weights)} weights: {kinds}")
    converted = Counter((w.convert, w.dtype.name) for w in source.weights.values() if w.convert)
    if converted:
        each = ", ".join(f"{n} from {a} to {b}" for (a, b), n in converted.items())
        yield Check("converted", None, f"while loading: {each}")
    bad: list[str] = []
    zero: list[str] = []
    total, done = sum(w.nbytes for w in source.weights.values()), 0
    for w in source.weights.values():
        if progress is not None:
            progress(done, total, w.name)
        n_bad, is_zero = _look(w, converter)
        if n_bad:
            bad.append(f"{w.name} ({n_bad:,} values)")
        elif is_zero and len(w.shape) > 1:
            zero.append(w.name)
        w.release()
        done += w.nbytes
    if progress is not None:
        progress(total, total, "")
    yield Check("finite", not bad, f"NaN or infinity in {_some(bad)}" if bad else
                "no weight holds NaN or infinity")  # fmt: skip
    if zero:
        yield Check("zeros", None, f"nothing but zeros in {_some(zero)}")


def _look(w: WeightSource, converter: Converter | None) -> tuple[int, bool]:
    """How many values are not finite, and whether all are zero."""
    n_bad, is_zero = 0, True
    for x in _values(w, converter):
        n_bad += n_not_finite(x)
        is_zero = is_zero and not x.any()
    return n_bad, is_zero


def _values(w: WeightSource, converter: Converter | None) -> Iterator[np.ndarray]:
    """All of a weight, some rows at a time."""
    n = w.shape[-1] if w.shape else 1
    row = w.dtype.row_bytes(n)
    raw = w.read().reshape(-1).view(np.uint8).reshape(-1, row)
    step = max(1, PART_BYTES // (4 * n))
    for i in range(0, len(raw), step):
        part = raw[i : i + step]
        if converter is not None and w.dtype.is_quantized:
            yield converter.decode(w.dtype, part, n)
        else:
            yield decode(w.dtype, part, (len(part), n))


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" * (len(names) > SHOWN))
