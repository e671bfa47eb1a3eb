"""Models of the Hugging Face hub: found, fetched, verified, and kept in the hub's own cache.

A model is named user/repo, or user/repo:QUANT for one of its files. huggingface_hub does the
transfers, resumes them, and keeps what it fetched; HF_ENDPOINT, HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE are its own. What is in the cache is used without a network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gguflow.engine import env
from gguflow.engine.dataclass import dataclass
from gguflow.engine.files import read_file

PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q8_0")  # of a repo named without a type, as llama.cpp
ANSWER_S = 10.0  # for the hub to say what a repository has
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HubError(RuntimeError):
    """A model that cannot be had from the hub: one line that says which and why."""


class HubNameError(HubError):
    """What is no name of a model of the hub."""


@dataclass(frozen=True)
class Name:
    """user/repo[:QUANT]."""

    repo: str
    quant: str | None

    @classmethod
    def parse(cls, text: str) -> Name:
        """Raises HubNameError for what is no such name."""
        if not _NAME.fullmatch(text):
            raise HubNameError(f"{text}: expected user/repo or user/repo:QUANT")
        repo, _, quant = text.partition(":")
        return cls(repo, quant or None)

    def __str__(self) -> str:
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


@dataclass(frozen=True)
class Kept:
    """A model on this machine. where: whose cache it is in."""

    name: str
    path: Path
    n_bytes: int
    where: str


def choose(files: Sequence[str], name: Name, file: str | None = None) -> list[str]:
    """The model's file among a repo's, all of its shards in order. file: by its own name. Raises
    HubError, which lists what there is."""
    models = sorted(f for f in files if f.lower().endswith(".gguf") and "mmproj" not in f.lower())
    first = [f for f in models if (m := _SHARD.search(f)) is None or int(m[1]) == 1]
    if not first:
        raise HubError(f"{name.repo}: the repository has no GGUF files")
    if file is not None:
        if file not in first:
            raise HubError(f"{name.repo}: no file {file}; there are {', '.join(first)}")
        return _shards(files, file, name)
    wanted = (name.quant,) if name.quant else PREFERRED
    found = next((f for q in wanted for f in first if _is_of(f, q)), None)
    if found is None:
        if name.quant is not None:
            raise HubError(f"{name}: no such file; there are {', '.join(map(_type_of, first))}")
        found = first[0]
    return _shards(files, found, name)


def _shards(files: Sequence[str], found: str, name: Name) -> list[str]:
    """All files of a model by its first one."""
    m = _SHARD.search(found)
    if m is None:
        return [found]
    stem, n = found[: m.start()], int(m[2])
    shards = [f"{stem}-{i:05d}-of-{n:05d}{found[-5:]}" for i in range(1, n + 1)]
    missing = [s for s in shards if s not in files]
    if missing:
        raise HubError(f"{name}: the repository lacks {missing[0]}")
    return shards


def _is_of(file: str, quant: str) -> bool:
    stem = _SHARD.sub("", file).removesuffix(".gguf").removesuffix(".GGUF")
    return re.search(rf"(^|[-._/]){re.escape(quant)}$", stem, re.IGNORECASE) is not None


def _type_of(file: str) -> str:
    stem = _SHARD.sub("", Path(file).name).removesuffix(".gguf")
    return stem.rpartition("-")[2] if "-" in stem else stem.rpartition(".")[2]


def fetch(
    text: str, file: str | None = None, token: str | None = None, offline: bool = False
) -> Path:
    """The first file of a model, fetched if it is not there. file: which one of the repository's,
    whatever types there are. token: in place of the user's own. offline: only what is in the cache.
    Raises HubError."""
    name = Name.parse(text)
    if offline:
        kept = _kept_files(name.repo)
        if not kept:
            raise HubError(f"{name}: not in the cache, and the hub is not to be asked")
        return kept[choose(list(kept), name, file)[0]]
    import huggingface_hub as hub

    try:
        # Asked once: listing the tree would go on asking for 23 s where there is no network, and
        # what is in the cache would wait for that.
        told = hub.HfApi(token=token).model_info(name.repo, timeout=ANSWER_S)
        files = [s.rfilename for s in told.siblings or []]
    except hub.errors.RepositoryNotFoundError:
        raise HubError(f"{name.repo}: the hub has no such repository, or not for you") from None
    except Exception as e:  # no network, or a server that is not well
        kept = _kept_files(name.repo)
        if not kept:
            raise HubError(f"{name}: the hub cannot be reached ({_line(e)})") from None
        return kept[choose(list(kept), name, file)[0]]
    paths = []
    for part in choose(files, name, file):
        try:
            before = hub.try_to_load_from_cache(name.repo, part)
            path = Path(hub.hf_hub_download(name.repo, part, token=token))
        except Exception as e:
            raise HubError(f"{name}: {part}: {_line(e)}; asked again, it goes on") from None
        if not isinstance(before, str):
            _verify(path, f"{name}: {part}")
        paths.append(path)
    return paths[0]


def _verify(path: Path, what: str) -> None:
    """A large file is kept under the SHA-256 that the hub told for it."""
    blob = Path(os.path.realpath(path))
    if not _SHA256.fullmatch(blob.name):
        return
    h = hashlib.sha256()
    with open(blob, "rb") as f:
        while data := f.read(1 << 20):
            h.update(data)
    if h.hexdigest() != blob.name:
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise HubError(f"{what}: what came has another SHA-256 than the hub says; it was removed")


def _line(e: BaseException) -> str:
    return " ".join(str(e).split())[:200] or type(e).__name__


def _kept_files(repo: str) -> dict[str, Path]:
    """Files of a repo in the hub's cache, of its newest revision that has any."""
    import huggingface_hub as hub

    try:
        found = hub.scan_cache_dir()
    except hub.errors.CacheNotFound:
        return {}
    for r in found.repos:
        if r.repo_type == "model" and r.repo_id == repo:
            for revision in sorted(r.revisions, key=lambda v: -v.last_modified):
                root = revision.snapshot_path
                files = {
                    f.file_path.relative_to(root).as_posix(): f.file_path
                    for f in revision.files
                    if f.file_name.lower().endswith(".gguf")
                }
                if files:
                    return files
    return {}


def kept() -> list[Kept]:
    """Models on this machine: of the hub's cache, ollama's and llama.cpp's."""
    return [*_of_hub(), *_of_ollama(), *_of_llama_cpp()]


def _of_hub() -> Iterator[Kept]:
    import huggingface_hub as hub

    try:
        repos = sorted(hub.scan_cache_dir().repos, key=lambda r: str(r.repo_id))
    except hub.errors.CacheNotFound:
        return
    for r in repos:
        files = _kept_files(str(r.repo_id)) if r.repo_type == "model" else {}
        for file, path in sorted(files.items()):
            m = _SHARD.search(file)
            if m is None or int(m[1]) == 1:
                shards = [p for f, p in files.items() if _SHARD.sub("", f) == _SHARD.sub("", file)]
                n = sum(p.stat().st_size for p in shards if p.exists())
                yield Kept(f"{r.repo_id}:{_type_of(file)}", path, n, "hub")


def _of_ollama() -> Iterator[Kept]:
    root = env.ollama_dir()
    for manifest in sorted((root / "manifests").glob("*/*/*/*")):
        try:
            layers = json.loads(read_file(manifest))["layers"]
            (digest,) = [x["digest"] for x in layers if x["mediaType"].endswith(".image.model")]
            path = root / "blobs" / digest.replace(":", "-")
            n = path.stat().st_size
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # not a manifest, or without its model
        user = manifest.parts[-3]
        prefix = "" if user == "library" else f"{user}/"
        yield Kept(f"ollama:{prefix}{manifest.parts[-2]}:{manifest.parts[-1]}", path, n, "ollama")


def _of_llama_cpp() -> Iterator[Kept]:
    for path in sorted(env.llama_cache_dir().glob("*.gguf")):
        yield Kept(path.name, path, path.stat().st_size, "llama.cpp")


def of_ollama(text: str) -> Path:
    """The file of `ollama:NAME[:TAG]`. Raises HubError, which lists what there is."""
    name = text if text.count(":") > 1 else f"{text}:latest"
    models = {k.name: k.path for k in _of_ollama()}
    if name not in models:
        there = ", ".join(models) or "none"
        raise HubError(f"{text}: ollama keeps no such model here; there are: {there}")
    return models[name]


def remove(text: str) -> int:
    """Take a model out of the hub's cache; returns the bytes that are free again. Raises
    HubError."""
    name = Name.parse(text)
    files = _kept_files(name.repo)
    if not files:
        raise HubError(f"{name}: not in the cache")
    gone = choose(list(files), name) if name.quant else list(files)
    n = 0
    others = set()
    for file, path in files.items():
        if file not in gone:
            others.add(os.path.realpath(path))
    for file in gone:
        blob = Path(os.path.realpath(files[file]))
        files[file].unlink(missing_ok=True)
        if str(blob) not in others and blob.exists():
            n += blob.stat().st_size
            blob.unlink()
    return n
