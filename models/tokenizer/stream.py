"""Token by token to text, holding back bytes until they make whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class TextStream:
    """Turns pieces into text as they come; never emits half a UTF-8 character.

    piece: bytes of a token id, empty for what should not show. All that push and flush return,
    joined, is the decoding of all the bytes; bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, piece: Callable[[int], bytes], strip_space: bool = False) -> None:
        self._piece = piece
        self._strip_space = strip_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text completed by this token; raises ValueError for an id outside the vocabulary."""
        data = self._piece(token)
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def push_all(self, tokens: Iterable[int]) -> str:
        """Text completed by some tokens; the same as a push of each."""
        if self._strip_space:
            return "".join(map(self.push, tokens))
        return self._decoder.decode(b"".join(map(self._piece, tokens)))

    def flush(self) -> str:
        """What is left of an unfinished character, as U+FFFD; the stream starts afresh."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
