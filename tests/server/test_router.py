"""Which replica a request goes to."""

from __future__ import annotations

from gguflow.engine.serving.kv import Group, KvCache
from gguflow.engine.serving.pages import page_hashes
from gguflow.server.cluster.router import PAGE, Router

PREFIX = list(range(1, 4 * PAGE + 1))


def router(n: int = 3, n_seqs: int = 4, n_pages: int = 64) -> Router:
    r = Router()
    for i in range(n):
        r.add(i, n_seqs, n_pages)
    return r


def test_the_hashes_are_those_of_the_cache() -> None:
    cache = KvCache({"full": Group(8)}, 2, 8, lambda *_: None)
    ids = PREFIX + [7, 8]
    assert page_hashes(ids, b"x") == cache.chain(ids, b"x")
    assert len(page_hashes(ids)) == 4
    assert len(page_hashes(PREFIX)) == 3  # the last token has to be computed


def test_equal_requests_take_turns() -> None:
    r = router()
    found = [r.choose([1, 2, 3]).replica for _ in range(6)]
    assert sorted(found) == [0, 0, 1, 1, 2, 2]


def test_a_prefix_is_looked_for_where_it_lies() -> None:
    r = router()
    first = r.choose([*PREFIX, 5])
    r.end(first)
    for tail in range(20):
        route = r.choose([*PREFIX, 9, tail])
        assert route.replica == first.replica and route.n_found == 4
        r.end(route)
    assert r.choose([*PREFIX, 5], b"another adapter").n_found == 0


def test_a_replica_with_too_much_to_do_is_left_for_another() -> None:
    """A prefix of four pages is worth four sequences beside it, and no place in a full batch."""
    r = router(2, n_seqs=32)
    routes = [r.choose([*PREFIX, 5])]
    r.begun(routes[0])
    while (route := r.choose([*PREFIX, 5])).replica == routes[0].replica:
        routes.append(route)
        r.begun(route)
        assert len(routes) < 10
    assert len(routes) >= 4
    r = router(2, n_seqs=1, n_pages=1000)
    long = list(range(1, 24 * PAGE))
    busy = r.choose(long)
    r.begun(busy)
    assert r.choose(long).replica != busy.replica


def test_load_is_taken_off_when_a_request_ends() -> None:
    r = router(2)
    routes = [r.choose([1] * 50) for _ in range(8)]
    assert sorted(x.replica for x in routes) == [0] * 4 + [1] * 4
    for x in routes:
        if x.replica == 0:
            r.end(x)
    assert [r.choose([1] * 50).replica for _ in range(4)] == [0] * 4


def test_what_is_remembered_is_bounded_by_the_cache() -> None:
    r = router(1, n_pages=6)
    for i in range(50):
        r.end(r.choose([1000 + i, *PREFIX]))
    assert len(r._known[0].pages) == 6
    assert r.choose([1049, *PREFIX]).n_found == 4  # the last ones
    assert r.choose([1000, *PREFIX]).n_found == 0


def test_a_lost_replica_gets_nothing_and_leaves_nothing() -> None:
    r = router(2)
    a, b = r.choose([1, 2]), r.choose([1, 2])
    r.remove(a.replica)
    assert [r.choose([1, 2]).replica for _ in range(3)] == [b.replica] * 3
    r.end(a)
    r.add("again", 4, 64)
    assert r.choose([1, 2]).replica == "again"
