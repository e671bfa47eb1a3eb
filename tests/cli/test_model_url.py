"""-mu: models of any web server, from one on this machine."""

from __future__ import annotations

import base64
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import write_tiny

from gguflow.engine import url as url_module
from gguflow.engine.hub import HubError, HubNameError
from gguflow.engine.url import fetch_url


class Web(http.server.ThreadingHTTPServer):
    """files by path. headers: told with every file. cut_at: bytes after which the next transfer
    breaks off. moved: paths that lead elsewhere. asked: paths and ranges."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.cut_at: int | None = None
        self.moved: dict[str, str] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.has_ranges = True

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Web

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        web, path = self.server, self.path.partition("?")[0]
        web.asked.append((path, self.headers.get("Range")))
        if path in web.moved:
            self.send_response(302)
            self.send_header("Location", web.moved[path])
            for name, value in web.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = web.files.get(path)
        if data is None:
            self.send_error(404)
            return
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        start = 0
        if web.has_ranges and self.headers.get("If-Range") == tag:
            start = int(self.headers["Range"].removeprefix("bytes=").partition("-")[0])
        if start >= len(data) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("ETag", tag)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        for name, value in web.headers.items():
            self.send_header(name, value)
        self.end_headers()
        rest = data[start:]
        if web.cut_at is not None:
            rest, web.cut_at = rest[: web.cut_at], None
        self.wfile.write(rest)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Web]:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    server = Web()
    server.files["/a/tiny.gguf"] = write_tiny(tmp_path / "tiny.gguf").read_bytes()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_once(web: Web) -> None:
    told: list[tuple[int, int, str]] = []
    path = fetch_url(web.url("/a/tiny.gguf?key=secret"), progress=lambda *x: told.append(x))
    data = web.files["/a/tiny.gguf"]
    assert path.read_bytes() == data and path.name == "tiny.gguf"
    assert told[-1] == (len(data), len(data), web.url("/a/tiny.gguf"))
    assert fetch_url(web.url("/a/tiny.gguf?key=secret"), offline=True) == path
    assert len(web.asked) == 1 and [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]
    with pytest.raises(HubError, match="not kept here"):
        fetch_url(web.url("/other.gguf"), offline=True)


def test_it_goes_on_where_it_broke_off(web: Web) -> None:
    data = web.files["/a/tiny.gguf"]
    web.cut_at = 1000
    with pytest.raises(
        HubError, match=f"broke off .*1000.*{len(data)}?.*; asked again, it goes on"
    ):
        fetch_url(web.url("/a/tiny.gguf"))
    assert fetch_url(web.url("/a/tiny.gguf")).read_bytes() == data
    assert web.asked[1] == ("/a/tiny.gguf", "bytes=1000-")


@pytest.mark.parametrize("why", ["changed", "no ranges"])
def test_another_file_is_begun_anew(web: Web, why: str) -> None:
    web.cut_at = 1000
    with pytest.raises(HubError):
        fetch_url(web.url("/a/tiny.gguf"))
    if why == "changed":
        web.files["/a/tiny.gguf"] = b"another" * 999
    else:
        web.has_ranges = False
    assert fetch_url(web.url("/a/tiny.gguf")).read_bytes() == web.files["/a/tiny.gguf"]


def test_all_of_it_was_there(web: Web) -> None:
    path = fetch_url(web.url("/a/tiny.gguf"))
    part = path.rename(path.with_name("tiny.gguf.part"))
    tag = hashlib.md5(part.read_bytes()).hexdigest()
    path.with_name("tiny.gguf.part.tag").write_text(f'"{tag}"')
    assert fetch_url(web.url("/a/tiny.gguf")).read_bytes() == web.files["/a/tiny.gguf"]


@pytest.mark.parametrize("form", ["Repr-Digest", "X-Linked-Etag"])
def test_a_digest_is_checked_where_one_is_told(web: Web, form: str) -> None:
    def told(data: bytes) -> str:
        digest = hashlib.sha256(data)
        if form == "X-Linked-Etag":
            return f'"{digest.hexdigest()}"'
        return f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"

    web.moved["/tiny.gguf"] = "/a/tiny.gguf"
    web.headers[form] = told(b"other bytes")
    with pytest.raises(HubError, match="another SHA-256 than the server says; it was removed"):
        fetch_url(web.url("/tiny.gguf"))
    web.headers[form] = told(web.files["/a/tiny.gguf"])
    assert fetch_url(web.url("/tiny.gguf")).read_bytes() == web.files["/a/tiny.gguf"]
    assert web.asked[-1][1] is None  # from the beginning


def test_redirects_lead_to_web_servers_alone(web: Web, tmp_path: Path) -> None:
    for i, target in enumerate((f"file://{tmp_path}/tiny.gguf", "ftp://127.0.0.1/a.gguf")):
        web.moved[f"/{i}.gguf"] = target
        with pytest.raises(HubError):
            fetch_url(web.url(f"/{i}.gguf"))


def test_all_shards_of_a_model(web: Web, tmp_path: Path) -> None:
    names = [f"big-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        web.files[f"/{name}"] = name.encode()
    to = tmp_path / "kept" / "mine-00001-of-00003.gguf"
    assert fetch_url(web.url(f"/{names[0]}"), to) == to
    assert [p.read_bytes().decode() for p in sorted(to.parent.iterdir())] == names
    path = fetch_url(web.url(f"/{names[0]}"))
    assert [p.name for p in sorted(path.parent.iterdir())] == names
    with pytest.raises(HubNameError, match="expected the first of a model's files"):
        fetch_url(web.url(f"/{names[1]}"))


@pytest.mark.parametrize("text", ["x", "ftp://x/a", "file:///etc/hostname", "http://", "http://[x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(HubNameError, match="expected an address"):
        fetch_url(text)


def test_names_of_files_stay_in_their_folder() -> None:
    names = [url_module._name(p) for p in ("/..", "/a/%2e%2e%2fx.gguf", "/", "/a/b c.gguf")]
    assert names == ["model.gguf", "x.gguf", "model.gguf", "b_c.gguf"]


def test_two_do_not_write_one_file(web: Web, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    to = tmp_path / "a.gguf"
    with open(tmp_path / "a.gguf.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HubError, match="another process is fetching it"):
            fetch_url(web.url("/a/tiny.gguf"), to)
    assert fetch_url(web.url("/a/tiny.gguf"), to) == to


def test_the_command(web: Web, run, tmp_path: Path) -> None:
    env = {"GGUFLOW_CACHE_DIR": str(tmp_path / "other")}
    words = ("generate", "-p", "Hello", "-n", "3", "-t", "1", "--temp", "0", "--no-perf")
    plain = run(*words, "-m", str(tmp_path / "tiny.gguf"), env=env)
    done = run(*words, "-mu", web.url("/a/tiny.gguf"), env=env)
    assert (done.returncode, done.stdout) == (0, plain.stdout) and done.stdout
    kept = tmp_path / "kept.gguf"
    assert run(*words, "-mu", web.url("/a/tiny.gguf"), "-m", str(kept), env=env).returncode == 0
    assert kept.read_bytes() == web.files["/a/tiny.gguf"]
    done = run(*words, "-mu", web.url("/none.gguf?key=secret"), env=env)
    assert done.returncode == 4 and "secret" not in done.stderr
    assert done.stderr.endswith("/none.gguf: the server answers 404 Not Found\n")
    done = run(*words, "-mu", "http://127.0.0.1:9/x.gguf", env=env)
    assert done.returncode == 4 and "cannot be reached (" in done.stderr
