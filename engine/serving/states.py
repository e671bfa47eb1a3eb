"""Fixed-size states of recurrent layers: one slot a sequence, and copies at some positions.

A recurrent state cannot be cut back: what a sequence was at an earlier position is only known where
a copy was made. So a copy is made every so many tokens and kept under the hash of the tokens before
it, for as long as no sequence needs the slot. At position 0 a layer starts from its own zeros,
whatever the slot holds.
"""

from __future__ import annotations

from collections.abc import Callable

from gguflow.engine.plan_key import STATES

from .pages import OutOfPages, PagePool

Copy = Callable[[str, int, int], None]  # group, source page, target page


class StateSlots:
    """The slots of all sequences. copy: told which slot to bring to which."""

    def __init__(self, n_slots: int, every: int, copy: Copy) -> None:
        self.pool = PagePool(STATES, n_slots)
        self.every = every
        self._copy = copy
        self._live: dict[int, int] = {}  # by sequence
        self._marks: dict[int, int] = {}  # the same, of states to go back to

    def slot(self, seq: int) -> int:
        """Where a sequence's state lives."""
        return self._live[seq]

    def create(self, seq: int, checkpoint: bytes | None) -> None:
        """A slot for a new sequence, from a copy made earlier where a key is given. Raises
        OutOfPages."""
        source = None if checkpoint is None else self.pool.find(checkpoint)
        if source is None:
            self._live[seq] = self.pool.take()
            return
        self.pool.share(source)
        if not self.pool.n_available:  # the last slot there is: the copy itself goes on
            self.pool.forget(source)
            self._live[seq] = source
            return
        self._live[seq] = self.pool.take()
        self._copy(STATES, source, self._live[seq])
        self.pool.release(source)

    def fork(self, seq: int, to: int) -> None:
        """The state of another sequence as it is now. Raises OutOfPages."""
        slot = self.pool.take()
        self._copy(STATES, self._live[seq], slot)
        self._live[to] = slot

    def free(self, seq: int) -> None:
        self.pool.release(self._live.pop(seq))
        if seq in self._marks:
            self.pool.release(self._marks.pop(seq))

    def mark(self, seq: int) -> None:
        """Copy a sequence's state, to go back to before anything else. Raises OutOfPages."""
        if seq not in self._marks:
            self._marks[seq] = self.pool.take()
        self._copy(STATES, self._live[seq], self._marks[seq])

    def go_back(self, seq: int) -> None:
        """Make a sequence's state what it was when it was marked."""
        self._copy(STATES, self._marks[seq], self._live[seq])

    def save(self, seq: int, key: bytes) -> None:
        """Copy a sequence's state for later, if a slot can be had without harm."""
        if self.pool.find(key) is not None:
            return
        try:
            slot = self.pool.take()
        except OutOfPages:
            return
        self._copy(STATES, self._live[seq], slot)
        self.pool.keep(slot, key)
        self.pool.release(slot)

    def restore(self, seq: int, key: bytes) -> None:
        """Make a sequence's state that of a copy, which is there."""
        slot = self.pool.find(key)
        assert slot is not None
        self._copy(STATES, slot, self._live[seq])
