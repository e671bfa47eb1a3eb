"""All CUDA kernels compile without a GPU, and the cache of compiled ones can be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from argument_sizes import with_checks
from kernel_list import entries_by_source, few_by_source, few_of, names_in

from gguflow.engine.graph import all_ops
from gguflow.kernels.cuda import jit
from gguflow.kernels.cuda.launch import Kernel, launch_files

SOURCES = sorted(p.name for p in Path(jit.__file__).parent.glob("*.cu"))
NORM = Kernel("norm.cu", "rms_norm<4, 1>")

# All kernels for one architecture take minutes. Those of every kind take half of one, so many of a
# source and function: what is left out of a type or a number of columns is in headers that others
# include.
MOST = 1
ARCHS = ["sm_80", "sm_90", "sm_100"]


def test_every_op_has_a_launch_file() -> None:
    missing = [s.name for s in all_ops() if s.name not in launch_files() and not s.optional]
    assert missing == []


def test_the_cases_reach_every_source() -> None:
    assert sorted(entries_by_source()) == SOURCES


def compiles(nvrtc: Any, source: str, entries: list[str], arch: str) -> None:
    compiled = nvrtc.compile_source(source, entries, arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert len(set(compiled.names)) == len(entries)


@pytest.mark.parametrize("source", SOURCES)
def test_some_of_every_kind_compile(nvrtc: Any, tmp_path: Path, source: str) -> None:
    """Of every function some; `test_compiles` takes all of them. And arguments, of all launches,
    have the size of the struct."""
    checked = with_checks(tmp_path / "check.cu", source)
    compiles(nvrtc, str(checked), few_by_source(MOST)[source], "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("source", SOURCES)
def test_compiles(nvrtc: Any, source: str, arch: str) -> None:
    compiles(nvrtc, source, entries_by_source()[source], arch)


def test_some_are_of_every_kind() -> None:
    entries = ["f<1, g<a, b>>", "f<1, g<a, c>>", "f<2, g<a, b>>", "f<2, g<a, c>>", "h"]
    few = few_of(entries)
    assert len(few) == 3 and "h" in few and set(few) <= set(entries)
    assert all(any(x in e for e in few) for x in ("<1", "<2", "b>>", "c>>"))
    assert {e[0] for e in few_of(entries, 2)} == {"f", "h"} and len(few_of(entries, 2)) == 2


def test_every_name_is_in_some_of_them() -> None:
    every, few = entries_by_source(), few_by_source(MOST)
    assert names_in(few) == names_in(every) >= {"block_q4_0", "bf16", "rms_norm"}
    assert all(0 < len(few[s]) <= len(entries) for s, entries in every.items())
    assert all(len(set(entries)) == len(entries) for entries in few.values())
    assert {s: entries for s, entries in few.items() if not {*entries} <= {*every[s]}} == {}


def test_an_error_names_the_source_and_the_line(nvrtc: Any) -> None:
    with pytest.raises(nvrtc.CompileError, match=r"norm\.cu \(nothing<3>\) for sm_90.*nothing"):
        nvrtc.compile_source("norm.cu", ["nothing<3>"], "sm_90")


def test_lines_are_named_on_request(nvrtc: Any, tmp_path: Path) -> None:
    """For sanitizers and profilers; kept apart from what has none."""
    found = [nvrtc.load(k, "sm_90", tmp_path) for k in (NORM, nvrtc.with_lines(NORM))]
    assert [b".debug_line" in x.cubin for x in found] == [False, True]
    assert len([*tmp_path.iterdir()]) == 2


# -- the cache ------------------------------------------------------------------------------------


def test_the_second_load_does_not_compile(
    nvrtc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = nvrtc.load(NORM, "sm_90", tmp_path / "new")
    monkeypatch.setattr(nvrtc, "compile_source", None)
    assert nvrtc.load(NORM, "sm_90", tmp_path / "new") == first
    assert [p.suffix for p in (tmp_path / "new").iterdir()] == [".cubin"]


@pytest.mark.parametrize("damage", [b"", b"gguflow", b"\0" * 5000, None])
def test_a_damaged_entry_is_compiled_again(
    nvrtc: Any, tmp_path: Path, damage: bytes | None
) -> None:
    first = nvrtc.load(NORM, "sm_90", tmp_path)
    (entry,) = tmp_path.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-100] if damage is None else damage)
    assert nvrtc.load(NORM, "sm_90", tmp_path) == first
    assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_only_time(nvrtc: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert nvrtc.load(NORM, "sm_90", tmp_path / "file").cubin


def test_the_key_tells_apart_what_the_code_depends_on(
    nvrtc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(entry: str = "f<1>", arch: str = "sm_90", options: tuple[str, ...] = ()) -> str:
        nvrtc._digest.cache_clear()
        return str(nvrtc.cache_key(Kernel("a.cu", entry, options), arch))

    monkeypatch.setattr(nvrtc, "ROOT", tmp_path)
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/a.cu").write_text('#include "cuda/b.cuh"\n')
    (tmp_path / "cuda/b.cuh").write_text('  #include "deep.h"\n')
    (tmp_path / "cuda/deep.h").write_text("// one\n")
    base = key()
    assert key() == base
    others = {key(entry="f<2>"), key(arch="sm_80"), key(options=("-fmad=false",))}
    (tmp_path / "cuda/deep.h").write_text("// two\n")
    others.add(key())
    monkeypatch.setattr(nvrtc, "compiler_version", lambda: (1, 2))
    others.add(key())
    nvrtc._digest.cache_clear()
    assert len(others | {base}) == 6
