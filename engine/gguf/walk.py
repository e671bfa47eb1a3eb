"""Finds the strings of an array: each one's place follows from the length of the one before."""

from __future__ import annotations

import struct
from array import array

import numpy as np

_WINDOW = 1 << 17  # bytes looked at together at most
_EACH = 32  # of them for a string
_STRETCH = 256  # strings walked one by one after a guess that did not hold


def string_bounds(rest: memoryview, n: int, order: str) -> array[int]:
    """Where in `rest` the length prefix of each of `n` strings begins, and where the last one ends.

    Fewer than `n + 1` entries mean that the strings do not fit: the last one that there is an entry
    for ends outside `rest`, or the next one does. `order` is the byte order of the prefixes.
    """
    # A vocabulary has hundreds of thousands of strings, and walking them is most of the time it
    # takes to open a file. So whole runs are guessed and verified at once; where that fails, some
    # strings are walked singly, twice as many each time, so that guessing in vain costs little.
    bounds = array("q")
    unpack = struct.Struct(order + "Q").unpack_from
    stretch = _STRETCH
    pos = 0
    while (missing := n - len(bounds)) > 0:
        if order == "<":
            window = min(_WINDOW, _EACH * missing)
            run = _guess_run(rest[pos : pos + window])[: missing + 1] + pos
            if run.size > 1:
                bounds.frombytes(run[:-1].tobytes())
                pos = int(run[-1])
            if run.size > stretch:
                continue
        stretch *= 2
        try:
            for _ in range(min(stretch, n - len(bounds))):
                bounds.append(pos)
                pos += unpack(rest, pos)[0] + 8
        except (struct.error, OverflowError):
            return bounds
    if pos <= len(rest):
        bounds.append(pos)
    return bounds


def _guess_run(window: memoryview) -> np.ndarray:
    """Where the first strings in `window` begin, and where the last one of them ends; may be empty.

    A prefix below 256 is a byte before seven zeros, and text rarely holds seven zeros. What looks
    like that is taken for a prefix as long as each one begins where the one before it ends, which
    also proves it: the first is known to be one.
    """
    data = np.frombuffer(window, np.uint8)
    zero = data[1:] == 0
    for step in (1, 2, 3):  # runs of 2, then 4, then 7 zeros
        zero = zero[:-step] & zero[step:] if zero.size > step else zero[:0]
    begin = np.flatnonzero(zero)
    if not begin.size or begin[0] != 0:
        return begin[:0]
    end = begin + 8 + data[begin]
    broken = np.flatnonzero(begin[1:] != end[:-1])
    count = int(broken[0]) + 1 if broken.size else begin.size
    return np.append(begin[:count], end[count - 1]).astype(np.int64)
