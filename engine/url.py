"""Models of any web server: fetched by their address, gone on with where that broke off, checked
where the server says how, and kept among gguflow's caches. What is kept is used without a network.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO
from urllib.parse import unquote, urlsplit

from gguflow import __version__
from gguflow.engine import env
from gguflow.engine.hub import HubError, HubNameError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Progress = Callable[[int, int, str], None]

ANSWER_S = 30.0  # for a server to say anything at all
_CHUNK = 1 << 20
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_MOST_SHARDS = 999
_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_url(
    url: str, to: Path | None = None, progress: Progress | None = None, offline: bool = False
) -> Path:
    """The first file of a model, fetched with its other shards if it is not there. to: its place,
    for one that is to be kept elsewhere. offline: only what is kept. Raises HubError."""
    path = _check(url)
    if to is None:
        place = hashlib.sha256(url.encode()).hexdigest()[:16]
        to = env.cache_dir() / "urls" / place / _name(path)
    m = _SHARD.search(path)
    parts = [(url, to)]
    if m is not None and 1 < int(m[2]) <= _MOST_SHARDS:
        if int(m[1]) != 1 or _SHARD.search(to.name) is None:
            raise HubNameError(f"{_shown(url)}: expected the first of a model's files")
        parts = [
            (_shard(url, i), to.with_name(_shard(to.name, i))) for i in range(1, int(m[2]) + 1)
        ]
    for address, target in parts:
        if target.is_file():
            continue
        if offline:
            raise HubError(f"{_shown(address)}: not kept here, and no server is to be asked")
        _Transfer(address, target).run(progress or (lambda *_: None))
    return to


def _check(url: str) -> str:
    """The path of an address. Raises HubNameError for what is none that can be asked."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        known = False
    if not known or not url.isascii() or any(c <= " " for c in url):
        raise HubNameError(f"{url}: expected an address, https://HOST/FILE.gguf")
    return parts.path


def _name(path: str) -> str:
    """A file's name by the path of its address."""
    name = re.sub(r"[^\w.-]", "_", unquote(path).rpartition("/")[2]).lstrip(".")
    return name[-200:] or "model.gguf"


def _shard(text: str, i: int) -> str:
    head, _, query = text.partition("?")
    changed = _SHARD.sub(lambda m: f"-{i:05d}-of-{m[2]}{m[0][-5:]}", head)
    return f"{changed}?{query}" if query else changed


def _shown(url: str) -> str:
    """An address without what may be secret in it: who asks, and signatures."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows what stays as safe as it was, and remembers what was said on the way."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        self.said.append(headers)
        to = urlsplit(newurl).scheme
        if to != "https" and to != urlsplit(req.full_url).scheme:
            raise urllib.error.URLError(f"it leads on to {_shown(newurl)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Transfer:
    """One file on its way. What has come lies beside its place, with what the server called it."""

    def __init__(self, url: str, target: Path) -> None:
        self.url, self.target, self.what = url, target, _shown(url)
        self.part = target.with_name(f"{target.name}.part")
        self.tag = target.with_name(f"{target.name}.part.tag")

    def run(self, progress: Progress) -> None:
        """Fetch it, from where an earlier transfer broke off. Raises HubError, and OSError of the
        disk."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        with open(self.part, "ab", opener=_not_through_links) as f, _alone(f, self.what):
            told = self._receive(f, self._tag() if f.tell() else "", progress)
            f.flush()
            os.fsync(f.fileno())
            if told is not None and told != _digest(self.part):
                f.truncate(0)
                raise HubError(
                    f"{self.what}: what came has another SHA-256 than the server says; it was "
                    "removed"
                )
            os.replace(self.part, self.target)
        self.tag.unlink(missing_ok=True)

    def _tag(self) -> str:
        try:
            return self.tag.read_text(encoding="ascii")
        except (OSError, ValueError):
            return ""

    def _receive(self, f: BinaryIO, tag: str, progress: Progress) -> str | None:
        """Bring all that is missing. tag: what the file was called that the first bytes are of.
        Returns the SHA-256 that the server told, if any."""
        redirects = _Redirects()
        headers = {"User-Agent": f"gguflow/{__version__}", "Accept-Encoding": "identity"}
        if tag:  # the server sends the rest of this very file, or all of what is there now
            headers |= {"Range": f"bytes={f.tell()}-", "If-Range": tag}
        request = urllib.request.Request(self.url, headers=headers)
        try:
            answer = urllib.request.build_opener(redirects).open(request, timeout=ANSWER_S)
        except urllib.error.HTTPError as e:
            if e.code == 416 and tag:  # nothing is missing, or the file is another one
                return self._receive(f, "", progress)
            raise HubError(f"{self.what}: the server answers {e.code} {e.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as e:
            reason = getattr(e, "reason", None) or e
            raise HubError(f"{self.what}: cannot be reached ({reason})") from None
        with answer:
            here = f.tell()
            if answer.status != 206 or not _goes_on(answer.headers, here):
                if answer.status == 206:
                    raise HubError(f"{self.what}: the server sends another part than was asked for")
                here = 0
                f.truncate(0)
                f.seek(0)
            called = answer.headers.get("ETag", "")
            self.tag.write_text("" if called.startswith("W/") else called, encoding="ascii")
            rest = answer.headers.get("Content-Length", "")
            total = here + int(rest) if rest.isdigit() else 0
            for data in self._read(answer):
                f.write(data)
                here += len(data)
                progress(here, max(total, here), self.what)
            if total and here != total:
                raise HubError(
                    f"{self.what}: broke off after {here} of {total} bytes; asked again, it goes on"
                )
            return _told([*redirects.said, answer.headers])

    def _read(self, answer: Any) -> Iterator[bytes]:
        while True:
            try:
                data = answer.read(_CHUNK)
            except (OSError, http.client.HTTPException) as e:
                why = str(e) or type(e).__name__
                raise HubError(f"{self.what}: broke off ({why}); asked again, it goes on") from None
            if not data:
                return
            yield data


def _not_through_links(path: str, flags: int) -> int:
    """A link that somebody else left there would have another file written."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def _alone(f: BinaryIO, what: str) -> Iterator[None]:
    """Two processes that write one file would mix its bytes."""
    if fcntl is not None:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HubError(f"{what}: another process is fetching it") from None
    yield


def _goes_on(headers: Any, here: int) -> bool:
    m = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return m is not None and int(m[1]) == here


def _told(said: list[Any]) -> str | None:
    """The SHA-256 that headers tell: RFC 9530's, or the hub's of large files."""
    for headers in said:
        if m := re.search(r"sha-256=:([^:]+):", headers.get("Repr-Digest", "")):
            try:
                return base64.b64decode(m[1]).hex()
            except binascii.Error:
                continue
        name = headers.get("X-Linked-Etag", "").strip('"')
        if _SHA256.fullmatch(name):
            return str(name)
    return None


def _digest(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
