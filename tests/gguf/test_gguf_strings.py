"""Arrays of strings: many are decoded at once, and are the same as one by one."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from gguflow.engine.gguf.strings import StringArray

PARTS = [b"", b"ab", "é中".encode(), b"\xe4\xb8", b"\xff", b"\xad\x80", "😀x".encode(), b" ", b"\n"]


def stored(items: list[bytes], before: bytes = b"") -> StringArray:
    out, bounds = before, array("q")
    for item in items:
        bounds.append(len(out))
        out += len(item).to_bytes(8, "little") + item
    bounds.append(len(out))
    return StringArray(out, bounds)


@pytest.mark.parametrize("n", [0, 1, 999, 1000, 5000])
@pytest.mark.parametrize("last", [b"end", b"", b"a\0b", b"\0"])
@pytest.mark.parametrize("before", [b"", b"\0x\xff"])
def test_many_strings(n: int, last: bytes, before: bytes) -> None:
    rng = np.random.default_rng(n)
    items = [*(PARTS[i] for i in rng.integers(0, len(PARTS), n)), last]
    found = stored(items, before)
    assert found.tolist() == [found[i] for i in range(len(items))]
    assert [s.encode("utf-8", "surrogateescape") for s in found] == items
