"""Models of the hub, from a server on this machine that answers as it does."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import write_tiny

from gguflow.engine import hub

huggingface_hub = pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """files: of each repo. told: a digest other than a file's own. asked: what was asked for."""

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tokens: set[str | None] = set()  # who asked
        self.files, self.asked = files, []
        self.told: dict[str, str] = {}
        self.cut_at: int | None = None  # bytes after which the next transfer breaks off


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, has_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append((self.command, path, self.headers.get("Range")))
        self.server.tokens.add(self.headers.get("Authorization"))
        if path.startswith("/api/models/"):
            self.tell(path.removeprefix("/api/models/"))
            return
        repo, found, file = path.strip("/").partition("/resolve/")
        data = self.server.files.get(repo, {}).get(file.partition("/")[2])
        if not found or data is None:
            self.fail(404, "EntryNotFound")
            return
        start = 0
        if ranged := self.headers.get("Range"):
            start = int(ranged.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        digest = self.server.told.get(file.partition("/")[2], hashlib.sha256(data).hexdigest())
        for key, value in (
            ("ETag", f'"{digest}"'), ("X-Linked-Etag", f'"{digest}"'), ("X-Repo-Commit", COMMIT),
            ("Accept-Ranges", "bytes"), ("Content-Length", str(len(data) - start)),
            ("X-Linked-Size", str(len(data))),
            ("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}"),
        ):  # fmt: skip
            self.send_header(key, value)
        self.end_headers()
        if has_body:
            cut, self.server.cut_at = self.server.cut_at, None
            self.wfile.write(data[start:cut] if cut else data[start:])

    def tell(self, path: str) -> None:
        repo = "/".join(path.split("/")[:2])
        if repo not in self.server.files:
            self.fail(404, "RepoNotFound")
            return
        names = self.server.files[repo]
        if "/tree/" in path:
            found: object = [{"type": "file", "path": n, "size": len(d), "oid": "0" * 40}
                             for n, d in names.items()]  # fmt: skip
        else:
            siblings = [{"rfilename": n} for n in names]
            found = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings,
                     "private": False, "downloads": 0, "likes": 0, "tags": []}  # fmt: skip
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, code: int, kind: str) -> None:
        self.send_response(code)
        self.send_header("X-Error-Code", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hub]:
    model = write_tiny(tmp_path / "m.gguf", gain=2.0).read_bytes()
    server = Hub(
        {
            "user/tiny-GGUF": {
                "README.md": b"# tiny", "tiny-Q8_0.gguf": model, "tiny-Q4_K_M.gguf": model + b"\0",
                "mmproj-tiny-Q8_0.gguf": b"x",
            },
            "user/split": {f"big-F16-0000{i}-of-00002.gguf": bytes([i]) * 9 for i in (1, 2)},
            "user/text": {"README.md": b"nothing"},
        }
    )  # fmt: skip
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def env(server: Hub, tmp_path: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf"),
        "HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "OLLAMA_MODELS": str(tmp_path / "ollama"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip


def test_fetched_once_then_from_the_cache_then_removed(
    run, server: Hub, env: dict[str, str]
) -> None:
    done = run("pull", "user/tiny-GGUF:Q8_0", env=env)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.read_bytes() == server.files["user/tiny-GGUF"]["tiny-Q8_0.gguf"]
    n = len([a for a in server.asked if a[0] == "GET" and "resolve" in a[1]])
    flags = ("-hf", "user/tiny-GGUF:q8_0", "-p", "A", "-n", "4", "--temp", "0", "-t", "1", "-q",
             "--no-perf")  # fmt: skip
    first = run("generate", *flags, env=env)
    assert first.returncode == 0 and first.stdout.startswith("A"), first.stderr
    assert n == 1 == len([a for a in server.asked if a[0] == "GET" and "resolve" in a[1]])
    listed = run("list", env=env).stdout
    assert "user/tiny-GGUF:Q8_0" in listed and "hub" in listed
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    again = run("generate", *flags, env=env | nowhere)
    assert again.returncode == 0 and again.stdout == first.stdout, again.stderr
    began = time.monotonic()
    lost = run("pull", "user/other", env=env | nowhere)
    assert time.monotonic() - began < 10  # asked once
    assert lost.returncode == 4 and "user/other: the hub cannot be reached" in lost.stderr
    assert "are free again" in run("rm", "user/tiny-GGUF:Q8_0", env=env).stderr
    assert run("list", env=env).stdout == "" and not path.exists()
    assert "gguflow pull" in run("list", env=env).stderr
    gone = run("rm", "user/tiny-GGUF:Q8_0", env=env)
    assert gone.returncode == 4 and "not in the cache" in gone.stderr


def test_the_usual_type_without_one_and_all_shards(run, env: dict[str, str]) -> None:
    assert run("pull", "user/tiny-GGUF", env=env).stdout.strip().endswith("tiny-Q4_K_M.gguf")
    path = Path(run("pull", "user/split", env=env).stdout.strip())
    assert path.name == "big-F16-00001-of-00002.gguf"
    assert (path.parent / "big-F16-00002-of-00002.gguf").read_bytes() == b"\2" * 9
    assert "user/split:F16" in run("list", env=env).stdout


def test_a_file_by_name_a_token_and_no_network(run, server: Hub, env: dict[str, str]) -> None:
    flags = ("-hf", "user/tiny-GGUF", "-p", "A", "-n", "2", "--temp", "0", "-t", "1", "--no-perf")
    done = run("generate", *flags, "--offline", env=env)
    assert done.returncode == 4 and "not in the cache" in done.stderr and not server.asked
    named = ("--hf-file", "tiny-Q8_0.gguf", "-hft", "secret")
    done = run("generate", *flags, *named, env=env)
    assert done.returncode == 0, done.stderr
    assert "Bearer secret" in server.tokens
    assert "user/tiny-GGUF:Q8_0" in run("list", env=env).stdout  # not the usual Q4_K_M
    server.asked.clear()
    again = run("generate", *flags, *named, "--offline", env=env)
    assert (again.returncode, again.stdout, server.asked) == (0, done.stdout, [])
    wrong = run("generate", *flags, "-hff", "x.gguf", env=env)
    assert wrong.returncode == 4 and "no file x.gguf; there are tiny-Q4_K_M.gguf" in wrong.stderr


def test_a_draft_of_the_hub(run, env: dict[str, str]) -> None:
    flags = ("-hf", "user/tiny-GGUF:Q8_0", "-p", "A", "-n", "9", "--temp", "0", "-t", "1")
    plain = run("generate", *flags, env=env)
    guessed = run("generate", *flags, "-hfd", "user/tiny-GGUF:Q8_0", env=env)
    assert guessed.returncode == 0 and guessed.stdout == plain.stdout
    assert "guesses by tiny-Q8_0.gguf" in guessed.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("user/none", "user/none: the hub has no such repository"),
        ("user/text", "user/text: the repository has no GGUF files"),
        ("user/tiny-GGUF:Q5_K", "there are Q4_K_M, Q8_0"),
        ("tiny", "tiny: expected user/repo or user/repo:QUANT"),
        ("a/b/c", "a/b/c: expected user/repo"),
    ],
)
def test_what_cannot_be_had(run, env: dict[str, str], name: str, message: str) -> None:
    done = run("pull", name, env=env)
    assert (done.returncode, done.stdout) == (2 if "expected" in message else 4, "")
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_file_with_another_digest_is_removed(run, server: Hub, env: dict[str, str]) -> None:
    server.told["tiny-Q8_0.gguf"] = "ab" * 32
    done = run("pull", "user/tiny-GGUF:Q8_0", env=env)
    assert done.returncode == 4 and "another SHA-256" in done.stderr
    assert run("list", env=env).stdout == ""
    del server.told["tiny-Q8_0.gguf"]
    assert run("pull", "user/tiny-GGUF:Q8_0", env=env).returncode == 0


def test_a_transfer_that_breaks_off_goes_on(run, server: Hub, env: dict[str, str]) -> None:
    data = bytes(range(256)) * (100 << 10)  # more than is read at a time
    server.files["user/tiny-GGUF"] = {"tiny-Q8_0.gguf": data}
    server.cut_at = len(data) * 3 // 4
    for _ in range(3):
        done = run("pull", "user/tiny-GGUF:Q8_0", env=env)
        if done.returncode == 0:
            break
    assert Path(done.stdout.strip()).read_bytes() == data
    ranges = [r for method, path, r in server.asked if method == "GET" and r and "resolve" in path]
    assert any(int(r.removeprefix("bytes=").partition("-")[0]) > 0 for r in ranges)


def test_models_of_ollama(run, tmp_path: Path, env: dict[str, str]) -> None:
    root = tmp_path / "ollama"
    blob = write_tiny(tmp_path / "x.gguf", gain=2.0).read_bytes()
    digest = "sha256:" + hashlib.sha256(blob).hexdigest()
    (root / "blobs").mkdir(parents=True)
    (root / "blobs" / digest.replace(":", "-")).write_bytes(blob)
    folder = root / "manifests" / "registry.ollama.ai" / "library" / "tiny"
    folder.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
    (folder / "latest").write_text(json.dumps({"layers": [layer]}))
    (folder / "broken").write_text("{}")
    assert run("list", env=env).stdout.startswith("ollama:tiny:latest ")
    done = run("generate", "-m", "ollama:tiny", "-p", "A", "-n", "2", "-q", "-t", "1", env=env)
    assert done.returncode == 0 and done.stdout.startswith("A")
    none = run("generate", "-m", "ollama:big", env=env)
    assert none.returncode == 4 and "there are: ollama:tiny:latest" in none.stderr


@pytest.mark.parametrize(
    ("files", "name", "chosen"),
    [
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], "u/r", ["a-Q4_0.gguf"]),
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], "u/r:q8_0", ["a-Q8_0.gguf"]),
        (["x/a-Q4_K_M.gguf", "a-Q4_0.gguf"], "u/r", ["x/a-Q4_K_M.gguf"]),
        (["a.Q6_K.gguf"], "u/r", ["a.Q6_K.gguf"]),
        (["a.Q6_K.gguf"], "u/r:Q6_K", ["a.Q6_K.gguf"]),
        (["a-IQ4_XS.gguf", "a-Q4_X.gguf"], "u/r:Q4_X", ["a-Q4_X.gguf"]),
        (["q8_0.gguf"], "u/r:Q8_0", ["q8_0.gguf"]),
    ],
)
def test_which_file_is_meant(files: list[str], name: str, chosen: list[str]) -> None:
    assert hub.choose(files, hub.Name.parse(name)) == chosen


def test_a_repo_without_all_shards() -> None:
    with pytest.raises(hub.HubError, match="lacks a-00002-of-00002"):
        hub.choose(["a-00001-of-00002.gguf"], hub.Name("u/r", None))
