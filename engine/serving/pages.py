"""Pages of one group of layers: who refers to them, and what those hold that nobody refers to."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from gguflow.engine.plan_key import PAGE


class OutOfPages(RuntimeError):
    """Every page is referred to: names the group."""


def chain_hash(parent: bytes, ids: list[int]) -> bytes:
    """The key of a page's contents: its tokens, after those that `parent` stands for."""
    from hashlib import blake2b  # short texts fill no page

    return blake2b(parent + array("q", ids).tobytes(), digest_size=16).digest()


def page_hashes(ids: Sequence[int], salt: bytes = b"") -> list[bytes]:
    """The keys of all full pages before the last of some tokens, which has to be computed."""
    found, parent = [], salt
    for p in range((len(ids) - 1) // PAGE):
        parent = chain_hash(parent, list(ids[p * PAGE : (p + 1) * PAGE]))
        found.append(parent)
    return found


class PagePool:
    """Reference counts of pages, and keys of the contents of some.

    A page is referred to, or idle (its contents have a key and may be wanted again), or free. The
    idle page that was let go first is the first to be given away.
    """

    def __init__(self, name: str, n_pages: int) -> None:
        self.name = name
        self.n_pages = n_pages
        self._refs = [0] * n_pages
        self._free = list(range(n_pages))[::-1]  # neighbours first: a lone sequence is in order
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._generated: set[int] = set()

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_idle(self) -> int:
        return len(self._idle)

    @property
    def n_available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._idle)

    @property
    def n_used(self) -> int:
        return self.n_pages - self.n_available

    def refs(self, page: int) -> int:
        return self._refs[page]

    def take(self) -> int:
        """A page of one's own, of any contents. Raises OutOfPages."""
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self.forget(page)
        else:
            raise OutOfPages(f"all {self.n_pages} pages of {self.name} are in use")
        self._refs[page] = 1
        return page

    def share(self, page: int) -> int:
        """One more reference to a page that holds something; returns it."""
        if not self._refs[page]:
            del self._idle[page]
        self._refs[page] += 1
        return page

    def release(self, page: int) -> None:
        """One reference less."""
        self._refs[page] -= 1
        if self._refs[page]:
            return
        if page in self._key_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    def keep(self, page: int, key: bytes, generated: bool = False) -> None:
        """Let others find a page's contents, which must not change from here on. Where another page
        holds the same, that one stays the one that is found.

        generated: its rows, or some before it, were computed one by one and not in chunks.
        """
        if key in self._page_of or page in self._key_of:
            return
        self._page_of[key], self._key_of[page] = page, key
        if generated:
            self._generated.add(page)

    def forget(self, page: int) -> None:
        """The contents are not to be found any more."""
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]
        self._generated.discard(page)

    def find(self, key: bytes) -> int | None:
        """The page that holds these contents."""
        return self._page_of.get(key)

    def is_generated(self, page: int) -> bool:
        """Of a page with a key: see `keep`."""
        return page in self._generated
