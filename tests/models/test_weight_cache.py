"""Repacked weights kept on the disk: the same answers, private files, nothing damaged believed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.cli.main import main
from gguflow.engine.backends.cpu import CpuBackend
from gguflow.engine.backends.cpu.packing import NativePacker
from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.load import kept, kept_file, weights
from gguflow.engine.model import Model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no weights are kept on Windows")
IDS = [1, 7, 9, 12]


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GGUFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "LEAST", 1)
    return write_tiny(tmp_path / "m.gguf", dtype="q8_0")


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the weights that are packed, as they are."""
    names: list[str] = []
    pack = NativePacker.pack

    def counted(self: NativePacker, weight: Any, raw: np.ndarray, out: np.ndarray) -> None:
        names.append(weight.name)
        pack(self, weight, raw, out)

    monkeypatch.setattr(NativePacker, "pack", counted)
    return names


def logits(path: Path, **changes: Any) -> tuple[bytes, tuple[str, ...]]:
    with Model.load(path, **changes) as model:
        return model.logits(IDS).tobytes(), model.weights.notes


def only_file() -> Path:
    (found,) = kept.kept()
    return found.path


def test_a_second_start_packs_nothing_and_says_the_same(
    model_file: Path, packed: list[str]
) -> None:
    plain, _ = logits(model_file, weight_cache=False)
    assert packed and not kept.kept()
    packed.clear()
    first, notes = logits(model_file)
    assert packed and "are kept for the next start" in notes[0]
    packed.clear()
    second, notes = logits(model_file)
    assert not packed and not notes
    assert plain == first == second
    file = only_file()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert kept.kept()[0].title == str(model_file)


def test_a_kept_file_that_is_cut_short_is_an_error(model_file: Path) -> None:
    """Not the end of the process; a new time, which others give it, is none."""
    logits(model_file)
    with Model.load(model_file) as model:
        os.utime(only_file())
        model.logits(IDS)
        os.truncate(only_file(), 4096)
        with pytest.raises(GgufError, match=rf"^{only_file()}: file: found one "):
            model.logits(IDS[::-1])
    only_file().unlink()
    with Model.load(model_file) as model:  # which packs into a new one
        os.truncate(only_file(), 4096)
        with pytest.raises(GgufError, match=rf"^{only_file()}: file: found one "):
            model.logits(IDS)


def test_a_file_that_is_cut_short_while_it_is_made_is_an_error(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are packed into its pages; what is missing of them would be zeros."""
    pack = NativePacker.pack

    def cut(*args: Any) -> None:
        (part,) = kept.folder().iterdir()
        os.truncate(part, 4096)
        pack(*args)

    with monkeypatch.context() as m:
        m.setattr(NativePacker, "pack", cut)
        with pytest.raises(GgufError, match=r"repacked: file: found one whose bytes could not be"):
            Model.load(model_file)
    assert list(kept.folder().iterdir()) == []
    right, _ = logits(model_file, weight_cache=False)
    assert logits(model_file)[0] == right


@pytest.mark.parametrize("where", ["magic", "key", "sums", "data", "end", "cut", "empty"])
def test_what_is_damaged_is_made_again(model_file: Path, packed: list[str], where: str) -> None:
    right, _ = logits(model_file)
    file = only_file()
    raw = bytearray(file.read_bytes())
    n_head = kept_file._HEAD.size + len(str(model_file))
    if where in ("cut", "empty"):
        raw = raw[: -4096 if where == "cut" else 0]
    else:
        at = {"magic": 3, "key": 40, "sums": n_head + 5, "data": 4096 + 11, "end": -1}[where]
        raw[at] ^= 16
    file.write_bytes(raw)
    packed.clear()
    found, notes = logits(model_file)
    assert found == right and packed
    assert str(file) in notes[0] and "it is made again" in notes[0]
    packed.clear()
    assert logits(model_file) == (right, ()) and not packed


def test_what_others_may_write_is_not_believed(model_file: Path, packed: list[str]) -> None:
    right, _ = logits(model_file)
    for path in (only_file(), only_file().parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        packed.clear()
        found, notes = logits(model_file)
        assert found == right and packed and "others may write it" in notes[0]
        if path.is_dir():
            path.chmod(mode)
    link = only_file()
    link.rename(link.with_name("elsewhere"))
    link.symlink_to("elsewhere")
    packed.clear()
    assert logits(model_file)[0] == right and packed


def test_another_file_under_the_same_name_is_another_model(model_file: Path) -> None:
    before = GgufFile.open(model_file).identity()
    first, _ = logits(model_file)
    status = model_file.stat()
    copy = model_file.with_name("copy.gguf")
    write_tiny(copy, seed=1, dtype="q8_0")  # fmt: skip
    # In place: same inode, size and time of change of the contents.
    with open(model_file, "r+b") as f:
        f.write(copy.read_bytes())
    os.utime(model_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert GgufFile.open(model_file).identity() != before
    assert logits(model_file)[0] == logits(copy)[0] != first


def test_a_load_that_ends_early_leaves_nothing(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(NativePacker, "pack", fail)
        with pytest.raises(KeyboardInterrupt):
            Model.load(model_file)
    assert list(kept.folder().iterdir()) == []


def test_without_room_on_the_disk_the_model_loads_all_the_same(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = logits(model_file, weight_cache=False)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    found, notes = logits(model_file)
    assert found == right and "No space left" in notes[0] and not kept.kept()


def test_a_file_system_without_fallocate(
    model_file: Path, packed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    right, _ = logits(model_file)
    packed.clear()
    assert logits(model_file) == (right, ()) and not packed


def test_the_oldest_goes_first(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        other = model_file.with_name(f"{i}.gguf")
        other.write_bytes(model_file.read_bytes())
        logits(other)
        for n, k in enumerate(kept.kept()):
            os.utime(k.path, (1e9 - n, 1e9 - n))
    size = kept.kept()[0].n_bytes
    logits(model_file.with_name("0.gguf"))  # used last now
    kept.make_room(2 * size)
    assert [Path(k.title).name for k in kept.kept()] == ["0.gguf", "2.gguf"]
    monkeypatch.setenv("GGUFLOW_WEIGHT_CACHE", "0")
    logits(model_file)
    assert len(kept.kept()) == 2


def test_layouts_have_names() -> None:
    from gguflow.engine.graph import dtype_by_name

    packer = CpuBackend(1).packer
    q4, q8 = dtype_by_name("q4_0"), dtype_by_name("q8_0")
    assert packer.layout([q4, q8]) == packer.layout([q8, q4, q4]) != packer.layout([q4])


def test_the_command_lists_and_clears(
    model_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logits(model_file)
    leftover = kept.folder() / ".x.repacked.0123456789abcdef.part"
    leftover.write_bytes(b"half")
    kernels = tmp_path / "cache" / "cuda"
    kernels.mkdir()
    (kernels / "k").write_bytes(b"code")
    assert main(["cache"]) == 0
    out = capsys.readouterr()
    assert str(model_file) in out.out and "(unfinished)" in out.out and "1 kernels" in out.out
    assert main(["cache", "--clear", "weights"]) == 0
    assert not kept.kept() and (kernels / "k").exists()
    assert main(["cache", "--clear"]) == 0
    assert not (kernels / "k").exists() and "are free again" in capsys.readouterr().err
