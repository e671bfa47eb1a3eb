"""The KV cache's bookkeeping: cases by hand, then anything at all against a model of memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gguflow.engine.plan_key import PAGE
from gguflow.engine.serving.kv import Group, KvCache, window_pages
from gguflow.engine.serving.pages import OutOfPages, PagePool
from gguflow.engine.serving.states import STATES


def no_copy(group: str, source: int, target: int) -> None:
    raise AssertionError("nothing is to be copied")


def cache(n_pages: int = 8, n_seqs: int = 4, **options) -> KvCache:
    return KvCache({"full": Group(n_pages)}, n_seqs, 8, options.pop("copy", no_copy), **options)


def put(kv: KvCache, seq: int, ids: list[int], generated: bool = False) -> None:
    kv.grow(seq, len(ids))
    kv.advance(seq, ids, generated)


def entries(kv: KvCache, seq: int, group: str = "full") -> list[int]:
    return [p for p in kv.tables[group][seq].tolist() if p >= 0]


def test_a_lone_sequence_has_its_pages_in_order() -> None:
    kv = cache()
    seq = kv.create()
    put(kv, seq, list(range(100)))
    assert entries(kv, seq) == [0, 1]
    put(kv, seq, list(range(300)))
    assert entries(kv, seq) == [0, 1, 2, 3, 4, 5, 6]
    rows = kv.rows("full", np.array([seq, seq]), np.array([63, 399]))
    assert rows.tolist() == [63, 399]


def test_growing_without_pages_changes_nothing() -> None:
    kv = cache(n_pages=3)
    one, two = kv.create(), kv.create()
    put(kv, one, [1] * 100)
    before = kv.tables["full"].copy()
    with pytest.raises(OutOfPages, match="2 pages of full are wanted, 1 of 3"):
        kv.grow(two, PAGE + 1)
    assert (kv.tables["full"] == before).all() and kv.n_available == {"full": 1}
    kv.grow(two, PAGE)
    with pytest.raises(ValueError, match="513 tokens do not fit 8 pages"):
        kv.grow(one, 412 + 1)


def test_sequences_that_begin_alike_share_pages() -> None:
    kv = cache()
    one = kv.create()
    put(kv, one, list(range(150)))
    two = kv.create([*range(140), 7])
    assert kv.length(two) == 2 * PAGE == kv.n_findable([*range(140), 7])
    assert entries(kv, two) == entries(kv, one)[:2]
    three = kv.create([9, *range(1, 150)])  # only the first token differs
    assert kv.length(three) == 0
    assert kv.length(kv.create(list(range(150)), salt=b"adapter")) == 0


def test_the_last_token_of_a_prompt_is_never_found() -> None:
    kv = cache()
    put(kv, kv.create(), [5] * (2 * PAGE))
    for n, found in ((PAGE, 0), (PAGE + 1, PAGE), (2 * PAGE, PAGE), (2 * PAGE + 1, 2 * PAGE)):
        seq = kv.create([5] * n)
        assert kv.length(seq) == found
        kv.free(seq)


def test_pages_are_found_after_their_sequence_ended_until_they_are_wanted() -> None:
    kv = cache(n_pages=4)
    one = kv.create()
    put(kv, one, list(range(200)))
    kv.free(one)
    pool = kv.pools["full"]
    assert (pool.n_used, pool.n_idle, pool.n_free) == (0, 3, 1)
    other = kv.create()
    put(kv, other, [1] * 2 * PAGE)  # takes the free one, then the last page of what was freed
    again = kv.create(list(range(200)))
    assert kv.length(again) == 2 * PAGE
    with pytest.raises(OutOfPages):
        kv.grow(again, 1)


def test_a_fork_shares_until_it_is_written_to() -> None:
    copies: list[tuple[str, int, int]] = []
    kv = cache(copy=lambda *what: copies.append(what))
    one = kv.create()
    put(kv, one, list(range(100)))
    two = kv.fork(one)
    assert entries(kv, two) == entries(kv, one) and kv.pools["full"].n_used == 2
    put(kv, one, [7])
    assert copies == [("full", 1, 2)] and entries(kv, one) == [0, 2]
    put(kv, two, [8])
    assert len(copies) == 1 and entries(kv, two) == [0, 1]
    assert kv.tokens(one)[99:] == [99, 7] and kv.tokens(two)[99:] == [99, 8]


def test_what_a_window_has_left_behind_is_given_back() -> None:
    n_pages = window_pages(100, 32)
    kv = KvCache({"window100": Group(n_pages, 100)}, 2, 64, no_copy, share=False)
    seq = kv.create()
    for at in range(0, 2000, 32):
        put(kv, seq, [1] * 32)
        first = max(0, at + 32 - 99) // PAGE
        held = np.nonzero(kv.tables["window100"][seq] >= 0)[0]
        assert held.min() <= first and len(held) <= n_pages
    assert kv.trim(seq, 1999) == 1999
    assert kv.trim(seq, 1000) == 0 and kv.length(seq) == 0
    assert kv.pools["window100"].n_used == 0


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 100, 128, 129])
@pytest.mark.parametrize("chunk", [1, 2, 16, 64, 65])
def test_pages_of_a_window_are_exactly_enough(window: int, chunk: int) -> None:
    most = 0
    kv = KvCache({"w": Group(window_pages(window, chunk), window)}, 1, 64, no_copy, share=False)
    seq = kv.create()
    for step in [1] * 70 + [chunk] * (2000 // chunk):
        put(kv, seq, [1] * step)
        most = max(most, len(entries(kv, seq, "w")))
    assert most <= kv.pools["w"].n_pages <= most + 1


def test_a_window_is_reused_where_its_tail_is_there() -> None:
    kv = KvCache({"full": Group(16), "window64": Group(8, 64)}, 4, 16, no_copy)
    one = kv.create()
    for i in range(0, 512, 64):
        put(kv, one, list(range(i, i + 64)))
    two = kv.create([*range(300), 1, 2])
    assert kv.length(two) == 256
    assert len(entries(kv, two, "full")) == 4 and len(entries(kv, two, "window64")) == 1
    kv.free(two)
    three = kv.create()
    put(kv, three, [1] * 6 * 64)  # takes pages of the window that nobody refers to
    assert kv.length(kv.create([*range(300), 1])) < 256


def test_rows_computed_one_by_one_are_marked() -> None:
    for share, expected in ((True, 3 * PAGE), (False, PAGE)):
        kv = cache(share_generated=share)
        seq = kv.create()
        put(kv, seq, [1] * 100)
        put(kv, seq, [2], generated=True)
        put(kv, seq, [3] * 99)
        assert kv.n_chunked(seq) == 100
        other = kv.create([*[1] * 100, 2, *[3] * 99])
        assert kv.length(other) == expected and kv.n_chunked(other) == PAGE
        assert kv.trim(seq, 50) == 50 and kv.n_chunked(seq) == 50


def test_a_recurrent_state_goes_back_to_where_it_was_copied() -> None:
    copies: list[tuple[str, int, int]] = []
    kv = KvCache({}, 2, 64, lambda *c: copies.append(c), n_states=4, every=128)
    one = kv.create()
    assert kv.states is not None
    for n in (100, 28, 128, 60):
        assert kv.until_checkpoint(one, 1000) >= n
        put(kv, one, [1] * n)
    assert kv.until_checkpoint(one, 1000) == 68
    assert [c[0] for c in copies] == [STATES] * 2
    two = kv.create([1] * 300)
    assert kv.length(two) == 256
    assert copies[2] == (STATES, copies[1][2], kv.states.slot(two))
    assert kv.trim(one, 200) == 128
    assert copies[3] == (STATES, copies[0][2], kv.states.slot(one))
    with pytest.raises(OutOfPages):
        kv.create()


def test_a_pool_gives_away_first_what_was_let_go_first() -> None:
    pool = PagePool("p", 3)
    pages = [pool.take() for _ in range(3)]
    for page, key in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.keep(page, key)
    for page in (1, 0, 2):
        pool.release(page)
    assert [pool.take() for _ in range(3)] == [1, 0, 2]
    assert pool.find(b"a") is None


WINDOW, EVERY, N_ENTRIES = 70, 128, 6


class Memory(RuleBasedStateMachine):
    """Every row of every page holds the tokens it was computed from. Whatever is done, a sequence
    must see the rows that belong to its tokens, and nothing may be lost or counted twice."""

    @initialize(n_full=st.integers(1, 10), n_window=st.integers(1, 8), n_states=st.integers(0, 5),
                share=st.booleans(), share_generated=st.booleans())  # fmt: skip
    def begin(
        self, n_full: int, n_window: int, n_states: int, share: bool, share_generated: bool
    ) -> None:
        groups = {"full": Group(n_full), "window": Group(n_window, WINDOW)}
        self.rows: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self.kv = KvCache(
            groups, 3, N_ENTRIES, self.copy, n_states=n_states, every=EVERY, share=share,
            share_generated=share_generated,
        )  # fmt: skip
        self.share_generated = share_generated
        self.held: dict[int, tuple[list[int], bytes]] = {}  # what each sequence should hold

    def copy(self, group: str, source: int, target: int) -> None:
        for r in range(PAGE):
            if (group, source, r) in self.rows:
                self.rows[group, target, r] = self.rows[group, source, r]

    def snapshot(self):
        pools = [*self.kv.pools.values(), *([self.kv.states.pool] if self.kv.states else [])]
        return ({n: t.tolist() for n, t in self.kv.tables.items()},
                [[p.refs(i) for i in range(p.n_pages)] for p in pools], self.kv.n_seqs)  # fmt: skip

    def choose(self, data) -> int:
        return data.draw(st.sampled_from(sorted(self.held)))

    @rule(data=st.data(), salt=st.sampled_from([b"", b"other"]))
    def create(self, data, salt: bytes) -> None:
        ids: list[int] = []
        if self.held and data.draw(st.booleans()):
            ids = list(self.held[self.choose(data)][0])
        ids = [*ids, *data.draw(st.sampled_from([[], [0], [0] * 64, [0] * 130, [1] * 200]))]
        before = self.snapshot()
        try:
            seq = self.kv.create(ids, salt)
        except OutOfPages:
            assert before == self.snapshot()
            return
        n = self.kv.length(seq)
        assert n < max(1, len(ids)) and n % PAGE == 0
        self.held[seq] = (ids[:n], salt)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), n=st.integers(1, 140), token=st.integers(0, 1), generated=st.booleans())
    def run(self, data, n: int, token: int, generated: bool) -> None:
        seq = self.choose(data)
        tokens, salt = self.held[seq]
        n = self.kv.until_checkpoint(seq, 1 if generated else n)
        before = self.snapshot()
        try:
            self.kv.grow(seq, n)
        except OutOfPages:
            assert before == self.snapshot()
            return
        except ValueError:
            assert len(tokens) + n > N_ENTRIES * PAGE
            return
        ids = [token] * n
        for i in range(n):
            pos = len(tokens) + i
            value = (*salt, *tokens, *ids[: i + 1])
            for name, table in self.kv.tables.items():
                page = int(table[seq, pos // PAGE])
                assert page >= 0 and self.kv.pools[name].refs(page) == 1
                self.rows[name, page, pos % PAGE] = value
        tokens.extend(ids)
        if self.kv.states is not None:
            self.rows[STATES, self.kv.states.slot(seq), 0] = (*salt, *tokens)
        self.kv.advance(seq, ids, generated)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), part=st.floats(0, 1))
    def trim(self, data, part: float) -> None:
        seq = self.choose(data)
        tokens, _ = self.held[seq]
        n = int(part * len(tokens))
        kept = self.kv.trim(seq, n)
        assert kept <= n
        del tokens[kept:]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data) -> None:
        seq = self.choose(data)
        before = self.snapshot()
        try:
            new = self.kv.fork(seq)
        except OutOfPages:
            assert before == self.snapshot()
            return
        tokens, salt = self.held[seq]
        self.held[new] = (list(tokens), salt)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data) -> None:
        seq = self.choose(data)
        self.kv.free(seq)
        del self.held[seq]

    @invariant()
    def every_sequence_sees_its_rows(self) -> None:
        for seq, (tokens, salt) in self.held.items():
            assert self.kv.tokens(seq) == tokens
            for name, group in self.kv.groups.items():
                table = self.kv.tables[name][seq]
                first = max(0, len(tokens) - group.window + 1) if group.window else 0
                for pos in {first, *range(first, len(tokens), 17), len(tokens) - 1}:
                    if first <= pos < len(tokens):
                        page = int(table[pos // PAGE])
                        assert page >= 0
                        assert self.rows[name, page, pos % PAGE] == (*salt, *tokens[: pos + 1])
            if self.kv.states is not None and tokens:
                slot = self.kv.states.slot(seq)
                assert self.rows[STATES, slot, 0] == (*salt, *tokens)

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        for name, pool in self.kv.pools.items():
            held = [p for p in self.kv.tables[name].ravel().tolist() if p >= 0]
            assert [held.count(p) for p in range(pool.n_pages)] == [
                pool.refs(p) for p in range(pool.n_pages)
            ]
            assert pool.n_used == len(set(held))
            assert pool.n_used + pool.n_idle + pool.n_free == pool.n_pages
        if self.kv.states is not None:
            assert self.kv.states.pool.n_used == len(self.held)

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        for seq in list(self.held):
            self.kv.free(seq)
        for pool in self.kv.pools.values():
            assert pool.n_used == 0 and pool.n_available == pool.n_pages


TestMemory = Memory.TestCase
TestMemory.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
