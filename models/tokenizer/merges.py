"""Byte-pair merges of a vocabulary, ready in a tenth of the time the library takes to take them in.

A table of all merges is made from hashes of their texts, in numpy, and words are merged in Python.
For a prompt that is soon done; for long texts the library is the faster one, see `bpe`.
"""

from __future__ import annotations

import numpy as np

from gguflow.engine.gguf.errors import show

from .metadata import Metadata
from .packed_text import Hashes, PackedText, Table
from .pairs import merged
from .vocab import Vocab

MERGES = "tokenizer.ggml.merges"


class Merges:
    """Which tokens become one, in which order.

    Raises GgufError naming a line that is not two tokens with a space between, or whose tokens, or
    the one they make, are not in the vocabulary. A pair that is given twice keeps its first rank.
    """

    def __init__(self, metadata: Metadata, vocab: Vocab) -> None:
        lines = PackedText(metadata.string_array(MERGES))
        space, n_spaces = lines.find(ord(" "))
        bad = (n_spaces != 1) | (space == lines.starts) | (space + 1 == lines.ends)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise metadata.error(
                f"{MERGES}[{i}]", show(lines.text(i)), "two tokens, a space between"
            )
        hashes = Hashes(lines)
        left, right = hashes.of(lines.starts, space, space + 1, lines.ends)
        whole = hashes.joined(left, right, space - lines.starts)
        tokens = PackedText(vocab.stored)
        (known,) = Hashes(tokens).of(tokens.starts, tokens.ends)
        vocabulary = Table(known)
        a, b, made = (vocabulary.find(h) for h in (left, right, whole))
        missing = (a < 0) | (b < 0) | (made < 0)
        if missing.any():
            _refuse(metadata, vocab, lines.text(int(np.flatnonzero(missing)[0])))
        self._table = Table((a.astype(np.uint64) << np.uint64(32)) | b.astype(np.uint64))
        self._made = made.data

    def find(self, left: int, right: int) -> tuple[int, int] | None:
        """(rank, token) of what two tokens become, or None."""
        rank = self._table.find_one(left << 32 | right)
        return None if rank < 0 else (rank, self._made[rank])

    def merge(self, ids: list[int]) -> list[int]:
        """Merge the pair of the lowest rank, the leftmost of equals, until there is none."""
        return merged(ids, self.find)


def _refuse(metadata: Metadata, vocab: Vocab, line: str) -> None:
    left, right = line.split(" ")
    text = next((t for t in (left, right, left + right) if t not in vocab.ids), left + right)
    raise metadata.error(MERGES, f"merge {show(line)} without a token {show(text)}", "its tokens")
