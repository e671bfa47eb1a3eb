"""NVRTC: compiles one kernel at a time for one architecture, with a cache on disk.

A cache entry is named by a hash of everything the machine code depends on: the source and every
file it includes, the entry, the options, the architecture and the compiler's version. Entries are
written to a temporary file and renamed, so that a reader never sees half of one; an entry that
cannot be read is compiled again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from gguflow.engine.files import private_folder, whole_file

from .launch import Kernel

ROOT = Path(__file__).resolve().parents[1]  # what #include "cuda/..." and "quants/..." start from
OPTIONS = ("--std=c++17", "-default-device")  # lambdas in device functions are device code
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_MAGIC = b"gguflow-cubin-1\n"


class CompileError(RuntimeError):
    """NVRTC is missing or a kernel does not compile: the compiler's own message."""


@dataclass(frozen=True)
class Compiled:
    """Machine code of one source, and the mangled name of each of its entries."""

    cubin: bytes
    names: tuple[str, ...]


def _nvrtc():  # type: ignore[no-untyped-def]
    """The binding module. Raises CompileError saying what to install."""
    try:
        from cuda.bindings import nvrtc

        _check(nvrtc, nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError) as e:
        # The bindings raise RuntimeError when they find no library to bind to.
        raise CompileError(
            f"NVRTC is not available ({e}); install it with: pip install 'gguflow[cuda13]'"
        ) from None
    return nvrtc


def _check(nvrtc, result):  # type: ignore[no-untyped-def]
    """The values of a call without its status; raises RuntimeError on failure."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcResult(status).name}")
    return values[0] if len(values) == 1 else tuple(values)


@cache
def compiler_version() -> tuple[int, int]:
    """NVRTC's version. Raises CompileError when it is not installed."""
    nvrtc = _nvrtc()
    major, minor = _check(nvrtc, nvrtc.nvrtcVersion())
    return int(major), int(minor)


@cache
def _digest(source: str) -> bytes:
    """Hash of a source file and of everything it includes, in the order it is met."""
    h = hashlib.sha256()
    seen: set[Path] = set()

    def add(path: Path) -> None:
        if path in seen:
            return
        seen.add(path)
        text = path.read_bytes()
        h.update(str(path.relative_to(ROOT)).encode() + b"\0" + text + b"\0")
        for name in _INCLUDE.findall(text):
            found = [p for p in (path.parent / name.decode(), ROOT / name.decode()) if p.is_file()]
            if found:
                add(found[0].resolve())

    add((ROOT / "cuda" / source).resolve())
    return h.digest()


def with_lines(kernel: Kernel) -> Kernel:
    """The same machine code, with the source lines it comes from for tools that look at it."""
    return replace(kernel, options=(*kernel.options, "-lineinfo"))


def cache_key(kernel: Kernel, arch: str) -> str:
    """The name of a cache entry."""
    h = hashlib.sha256(_digest(kernel.source))
    for part in (kernel.entry, *OPTIONS, *kernel.options, arch, repr(compiler_version())):
        h.update(part.encode() + b"\0")
    return h.hexdigest()


def compile_source(
    source: str, entries: Sequence[str], arch: str, options: Sequence[str] = ()
) -> Compiled:
    """Compile entries (C++ name expressions) of a `.cu` file of this directory; no cache.

    Raises CompileError with the compiler's log.
    """
    nvrtc = _nvrtc()
    text = (ROOT / "cuda" / source).read_bytes()
    program = _check(nvrtc, nvrtc.nvrtcCreateProgram(text, source.encode(), 0, None, None))
    try:
        for e in entries:
            _check(nvrtc, nvrtc.nvrtcAddNameExpression(program, e.encode()))
        target = () if any(o.startswith("-arch=") for o in options) else (f"-arch={arch}",)
        flags = [o.encode() for o in (*OPTIONS, *options, *target, f"-I{ROOT}")]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        if int(status) != 0:
            log = b" " * int(_check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(
                f"{source} ({', '.join(entries)}) for {arch}: "
                + log.rstrip(b"\0 \n").decode(errors="replace")
            )
        cubin = b" " * int(_check(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        names = [_check(nvrtc, nvrtc.nvrtcGetLoweredName(program, e.encode())) for e in entries]
        return Compiled(cubin, tuple(n.decode() for n in names))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def load(kernel: Kernel, arch: str, cache_dir: Path) -> Compiled:
    """A kernel's machine code, from the cache when it is there and nobody else can have put it
    there."""
    path = cache_dir / f"{cache_key(kernel, arch)}.cubin"
    with suppress(OSError, ValueError):
        return _decode((private_folder(cache_dir) / path.name).read_bytes())
    compiled = compile_source(kernel.source, (kernel.entry,), arch, kernel.options)
    # A cache that cannot be written to costs time, not correctness.
    with suppress(OSError):
        _write(path, _encode(compiled))
    return compiled


def _encode(compiled: Compiled) -> bytes:
    body = compiled.names[0].encode() + b"\0" + compiled.cubin
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Compiled:
    """Raises ValueError for anything but an intact entry."""
    head = len(_MAGIC) + 32
    body = data[head:]
    if data[:head] != _MAGIC + hashlib.sha256(body).digest():
        raise ValueError("damaged cache entry")
    name, _, cubin = body.partition(b"\0")
    return Compiled(cubin, (name.decode(),))


def _write(path: Path, data: bytes) -> None:
    private_folder(path.parent)
    with whole_file(path, durable=False) as part:
        part.write_bytes(data)
