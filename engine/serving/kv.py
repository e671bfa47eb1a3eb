"""The KV cache of many sequences: which page of which group holds which positions.

Bookkeeping alone: no device is touched, and rows are copied by whoever is asked to. A sequence's
positions [64 p, 64 p + 64) lie in the page that entry p of its table names, in every group of
layers. Full pages are found again by the hash of all tokens up to their end, so sequences that
begin alike share them; pages that a sliding window has left behind are given back; what nobody
refers to stays until its room is wanted (Kwon et al. 2023, arXiv 2309.06180; vLLM's
`KVCacheManager`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.plan_key import PAGE

from .pages import OutOfPages, PagePool, chain_hash, page_hashes
from .states import Copy, StateSlots


@dataclass(frozen=True)
class Group:
    """Layers that share pages. window: how many of the last tokens they need; 0 for all."""

    n_pages: int
    window: int = 0

    def first_page(self, length: int) -> int:
        """The first page that a token at position `length`, or any after it, can see."""
        return max(0, length - self.window + 1) // PAGE if self.window else 0


def window_pages(window: int, n_chunk: int) -> int:
    """Pages that a sequence has at most in a group with a sliding window, while rows of up to
    n_chunk tokens are computed at once."""
    # The rows of a run and the window before them, which may begin and end within a page.
    return (window + n_chunk - 3) // PAGE + 2


@dataclass
class _Sequence:
    """tokens: those whose rows are computed. n_chunked: of them, how many first ones were computed
    in chunks. room: up to which position the pages to write are there and nobody else's."""

    salt: bytes
    tokens: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of full pages
    n_chunked: int = 0
    room: int = 0


class KvCache:
    """Sequences and their pages. A sequence is a number: its row in the tables.

    groups: by name. n_seqs: sequences at once; n_entries: pages of a sequence. copy: called with
    (group, source page, target page), to copy all rows of a page before the next run.
    n_states: slots of recurrent state, where there are layers with one; `every`: tokens between
    the copies of it, whole pages. share_generated: whether rows that were computed one by one may
    stand for the same rows computed in chunks, which holds where both give the same bits.
    whole_prompts: whether prompts are read in both directions. Their rows then depend on all of the
    prompt: they are computed at once, and no others stand for them.
    """

    def __init__(
        self, groups: Mapping[str, Group], n_seqs: int, n_entries: int, copy: Copy, *,
        n_states: int = 0, every: int = 16 * PAGE, share: bool = True,
        share_generated: bool = True, whole_prompts: bool = False,
    ) -> None:  # fmt: skip
        if every % PAGE:
            raise ValueError(f"{every} tokens are not whole pages of {PAGE}")
        self.groups = dict(groups)
        self.pools = {name: PagePool(name, g.n_pages) for name, g in groups.items()}
        self.tables = {name: np.full((n_seqs, n_entries), -1, np.int32) for name in groups}
        self.n_entries = n_entries
        self.states = StateSlots(n_states, every, copy) if n_states else None
        self._copy = copy
        self.whole_prompts = whole_prompts
        self._share = share and not whole_prompts
        self.share_generated = share_generated and not whole_prompts
        # Windows let pages go as they move on; a state is copied where it stands.
        self._seals_at_once = n_states > 0 or any(g.window for g in groups.values())
        self._seqs: dict[int, _Sequence] = {}
        self._unsealed: set[int] = set()  # sequences with full pages that have no key yet
        self._free = list(range(n_seqs))[::-1]

    # -- sequences -------------------------------------------------------------------------------

    @property
    def n_seqs(self) -> int:
        return len(self._seqs)

    @property
    def n_free_seqs(self) -> int:
        """Sequences that can still be created."""
        return len(self._free)

    def is_ample(self, n_chunk: int) -> bool:
        """Whether there are pages for all sequences with full contexts, computed n_chunk tokens at
        a time."""
        n_seqs = len(self._free) + len(self._seqs)
        each = {name: min(self.n_entries, window_pages(g.window, n_chunk)) if g.window else
                self.n_entries for name, g in self.groups.items()}  # fmt: skip
        return all(g.n_pages >= n_seqs * each[name] for name, g in self.groups.items())

    def tokens(self, seq: int) -> list[int]:
        """The tokens whose rows are there: the cache's own list, to read."""
        return self._seqs[seq].tokens

    def length(self, seq: int) -> int:
        return len(self._seqs[seq].tokens)

    def salt(self, seq: int) -> bytes:
        """What the rows depend on besides the tokens."""
        return self._seqs[seq].salt

    def n_chunked(self, seq: int) -> int:
        """How many of the first tokens have rows that were computed in chunks, as a prompt's are;
        a row that came of a single token marks all after it, which were computed from it."""
        return self._seqs[seq].n_chunked

    def chain(self, ids: Sequence[int], salt: bytes = b"") -> list[bytes]:
        """The keys that `create` looks for, of all full pages before the last token."""
        return page_hashes(ids, salt) if self._share else []

    def n_findable(self, ids: Sequence[int], salt: bytes = b"") -> int:
        """How many of `ids` a new sequence would begin with."""
        self._seal_all()
        hashes = self.chain(ids, salt)
        return self._resume(hashes, len(hashes) * PAGE, None)[0]

    def create(
        self, ids: Sequence[int] = (), salt: bytes = b"", hashes: Sequence[bytes] | None = None
    ) -> int:
        """A new sequence, which begins with as many of `ids` as are found, but never all: the last
        one has to be computed. salt: what else the rows depend on. hashes: their chain, where it is
        known. Raises OutOfPages."""
        if not self._free:
            raise OutOfPages(f"all {len(self._seqs)} sequences are in use")
        s = _Sequence(salt)
        n = 0
        if hashes is None:
            hashes = self.chain(ids, salt)
        if hashes:
            self._seal_all()
            n, found = self._resume(hashes, len(hashes) * PAGE, None)
            s.hashes = list(hashes[: n // PAGE])
        seq = self._free[-1]
        if self.states is not None:
            self.states.create(seq, s.hashes[-1] if n else None)
        self._free.pop()
        self._seqs[seq] = s
        if n:
            s.tokens = list(ids[:n])
            s.n_chunked = n
            for name, pages in found.items():
                for p, page in pages.items():
                    self.tables[name][seq, p] = self.pools[name].share(page)
                    if self.pools[name].is_generated(page):
                        s.n_chunked = min(s.n_chunked, p * PAGE)
        return seq

    def fork(self, seq: int) -> int:
        """Another sequence with the same tokens. Its pages are shared until one is written to.
        Raises OutOfPages."""
        if not self._free:
            raise OutOfPages(f"all {len(self._seqs)} sequences are in use")
        new, old = self._free[-1], self._seqs[seq]
        self._seal(seq, old)
        old.room = 0
        if self.states is not None:
            self.states.fork(seq, new)
        self._free.pop()
        self._seqs[new] = _Sequence(old.salt, [*old.tokens], [*old.hashes], old.n_chunked)
        n_pages = -(-len(old.tokens) // PAGE)
        for name, table in self.tables.items():
            table[new, :n_pages] = table[seq, :n_pages]
            for page in table[seq, :n_pages]:
                if page >= 0:
                    self.pools[name].share(int(page))
        return new

    def free(self, seq: int) -> None:
        """End a sequence. Its full pages can still be found, the last for the shortest time."""
        self._seal(seq, self._seqs[seq])
        for name in self.groups:
            self._drop(name, seq, range(self.n_entries))
        if self.states is not None:
            self.states.free(seq)
        del self._seqs[seq]
        self._free.append(seq)

    # -- tokens ----------------------------------------------------------------------------------

    def grow(self, seq: int, n: int) -> None:
        """Pages for n more tokens. Raises OutOfPages, with nothing done, where there are too few;
        ValueError for more than a table has entries for."""
        s = self._seqs[seq]
        length = len(s.tokens)
        if length + n <= s.room or n < 1:
            return
        at, last = length // PAGE, (length + n - 1) // PAGE
        if last >= self.n_entries:
            raise ValueError(f"{length + n} tokens do not fit {self.n_entries} pages")
        for name, group in self.groups.items():
            table, pool = self.tables[name][seq], self.pools[name]
            missing = int(np.count_nonzero(table[at : last + 1] < 0))
            if missing or group.window:
                gone = [p for p in table[: group.first_page(length)].tolist() if p >= 0]
                room = pool.n_available + sum(pool.refs(p) == 1 for p in gone)
            else:
                room = pool.n_available
            if missing + self._is_shared(name, seq, length) > room:
                raise OutOfPages(
                    f"{missing} pages of {name} are wanted, {room} of {pool.n_pages} can be had"
                )
        for name, group in self.groups.items():
            table, pool = self.tables[name][seq], self.pools[name]
            if group.window:
                self._drop(name, seq, range(group.first_page(length)))
            if length % PAGE:
                page = int(table[at])
                if self._is_shared(name, seq, length):
                    table[at] = pool.take()
                    self._copy(name, page, int(table[at]))
                    pool.release(page)
                else:
                    pool.forget(page)  # its rows from here on will be others
            for p in range(at, last + 1):
                if table[p] < 0:
                    table[p] = pool.take()
        s.room = (last + 1) * PAGE

    def shrink(self, seq: int) -> None:
        """Give back the pages that were grown and not written to."""
        s = self._seqs[seq]
        n_pages = -(-len(s.tokens) // PAGE)
        for name in self.groups:
            self._drop(name, seq, range(n_pages, self.n_entries))
        s.room = 0

    def n_missing(self, seq: int, n: int, n_chunk: int) -> dict[str, int]:
        """By group, the pages that n more tokens will take at most, computed n_chunk at a time."""
        s = self._seqs[seq]
        held = max(s.room, len(s.tokens) + PAGE - 1) // PAGE
        most = max(0, -(-(len(s.tokens) + n) // PAGE) - held)
        found = dict.fromkeys(self.groups, most)
        for name, group in self.groups.items():
            if group.window and most:  # what is behind is given back on the way
                held = int(np.count_nonzero(self.tables[name][seq] >= 0))
                found[name] = min(most, max(0, window_pages(group.window, n_chunk) - held))
        return found

    def grow_all(self, seqs: Sequence[int], n: Sequence[int]) -> bool:
        """Pages for so many more tokens of each of these. Where there are too few each has room for
        one token more, for which there must be pages, and the answer is no."""
        try:
            for seq, more in zip(seqs, n, strict=True):
                self.grow(seq, more)
        except OutOfPages:
            for seq in seqs:
                self.shrink(seq)
                self.grow(seq, 1)
            return False
        return True

    def advance(
        self, seq: int, ids: Sequence[int], generated: bool = False, sealed: bool = True
    ) -> None:
        """The rows of these tokens, which come next, have been computed. generated: one by one, and
        not in chunks. sealed: whether the sequence's recurrent state, if any, is the one after
        them; otherwise nothing of it is copied now."""
        s = self._seqs[seq]
        before = len(s.tokens)
        s.tokens.extend(ids)
        after = len(s.tokens)
        if s.n_chunked == before and not generated:
            s.n_chunked = after
        if after // PAGE > len(s.hashes):
            self._unsealed.add(seq)
            if self._seals_at_once and (sealed or self.states is None):
                self._seal(seq, s)

    def advance_each(self, seqs: Sequence[int], ids: Sequence[int]) -> None:
        """The same for one generated token of each of some sequences."""
        for seq, id in zip(seqs, ids, strict=True):
            s = self._seqs[seq]
            s.tokens.append(id)
            if not len(s.tokens) % PAGE:
                self._unsealed.add(seq)
            if self._seals_at_once and seq in self._unsealed:
                self._seal(seq, s)

    def until_checkpoint(self, seq: int, n: int) -> int:
        """How many of the next n tokens may be computed at once: a copy of a recurrent state can
        only be made between runs."""
        if self.states is None:
            return n
        every = self.states.every
        return min(n, every - len(self._seqs[seq].tokens) % every)

    def last_copy(self, seq: int) -> tuple[int, int] | None:
        """After how many of a sequence's tokens its recurrent state was copied last, and the slot
        of that copy; None where there is none."""
        s = self._seqs[seq]
        if self.states is None or not (n := len(s.tokens) // self.states.every * self.states.every):
            return None
        slot = self.states.pool.find(s.hashes[n // PAGE - 1])
        return None if slot is None else (n, slot)

    def trim(self, seq: int, n: int) -> int:
        """Keep at most the first n tokens; returns how many could be kept. Fewer than n are where
        a window has given back what the tokens after them would see, or a recurrent state was
        copied last."""
        s = self._seqs[seq]
        if n >= len(s.tokens):
            return len(s.tokens)
        self._seal(seq, s)
        kept, found = self._resume(s.hashes, n, seq)
        del s.tokens[kept:], s.hashes[kept // PAGE :]
        s.n_chunked, s.room = min(s.n_chunked, kept), 0
        n_pages = -(-kept // PAGE)
        for name, pages in found.items():
            for p, page in pages.items():
                if self.tables[name][seq, p] < 0:
                    self.tables[name][seq, p] = self.pools[name].share(page)
            self._drop(name, seq, range(n_pages, self.n_entries))
        if self.states is not None and kept:
            self.states.restore(seq, s.hashes[kept // PAGE - 1])
        return kept

    # -- what a run reads ------------------------------------------------------------------------

    def rows(self, name: str, seqs: np.ndarray, pos: np.ndarray) -> np.ndarray:
        """Rows of a group's states that positions of sequences live in: int [n]."""
        return self.tables[name][seqs, pos // PAGE] * PAGE + pos % PAGE

    def slots(self, seqs: np.ndarray) -> np.ndarray:
        """Where the recurrent states of sequences live: int [n]."""
        assert self.states is not None
        return np.array([self.states.slot(int(seq)) for seq in seqs])

    @property
    def n_available(self) -> dict[str, int]:
        """By group, the pages that sequences can still get."""
        return {name: pool.n_available for name, pool in self.pools.items()}

    # -- inside ----------------------------------------------------------------------------------

    def _seal_all(self) -> None:
        for seq in [*self._unsealed]:
            self._seal(seq, self._seqs[seq])

    def _seal(self, seq: int, s: _Sequence) -> None:
        """Give the pages that have become full their keys, before somebody looks for them or they
        are let go. Most are not given any sooner: hashing takes time that a first token waits for.
        """
        self._unsealed.discard(seq)
        first, n_full = len(s.hashes), len(s.tokens) // PAGE
        for p in range(first, n_full):
            parent = s.hashes[-1] if s.hashes else s.salt
            s.hashes.append(chain_hash(parent, s.tokens[p * PAGE : (p + 1) * PAGE]))
            generated = (p + 1) * PAGE > s.n_chunked
            if not self._share or (generated and not self.share_generated):
                continue
            for name, pool in self.pools.items():
                page = int(self.tables[name][seq, p])
                if page >= 0:
                    pool.keep(page, s.hashes[-1], generated)
        is_new = n_full > first
        if self.states is not None and is_new and len(s.tokens) % self.states.every == 0:
            self.states.save(seq, s.hashes[-1])

    def _is_shared(self, name: str, seq: int, length: int) -> bool:
        """Whether the page that the next token's row is in belongs to others too."""
        page = self.tables[name][seq, length // PAGE] if length % PAGE else -1
        return page >= 0 and self.pools[name].refs(int(page)) > 1

    def _drop(self, name: str, seq: int, entries: range) -> None:
        """Let go of a sequence's pages, the last first: it is the first to be given away."""
        table, pool = self.tables[name][seq], self.pools[name]
        part = table[entries.start : entries.stop]
        for p in np.nonzero(part >= 0)[0][::-1]:
            pool.release(int(part[p]))
        part[:] = -1

    def _resume(
        self, hashes: Sequence[bytes], most: int, seq: int | None
    ) -> tuple[int, dict[str, dict[int, int]]]:
        """How many of up to `most` tokens a sequence can go on from, and by group the pages that it
        then has: entry -> page. hashes: of its full pages. seq: the one that holds them already."""
        pages: dict[str, dict[int, int]] = {name: {} for name in self.groups}
        for name, pool in self.pools.items():
            for p in range(-(-most // PAGE)):
                own = -1 if seq is None else int(self.tables[name][seq, p])
                page = own if own >= 0 else pool.find(hashes[p]) if p < len(hashes) else None
                if page is not None:
                    pages[name][p] = page
                elif not self.groups[name].window:
                    most = min(most, p * PAGE)
                    break
        starts = [most, *range((most - 1) // PAGE * PAGE, 0, -PAGE)] if most else []
        for n in starts:
            if self.states is not None:
                at_copy = n % self.states.every == 0
                if not at_copy or self.states.pool.find(hashes[n // PAGE - 1]) is None:
                    continue
            needed = {
                name: range(group.first_page(n), -(-n // PAGE))
                for name, group in self.groups.items()
            }
            if all(p in pages[name] for name, entries in needed.items() for p in entries):
                return n, {name: {p: pages[name][p] for p in entries}
                           for name, entries in needed.items()}  # fmt: skip
        return 0, {name: {} for name in self.groups}
