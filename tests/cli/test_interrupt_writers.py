"""Ctrl-C ends the commands that write models within 0.3 s, and leaves nothing behind."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import start
from tiny_model import write_tiny

from gguflow.engine.backends.cpu import convert as native
from gguflow.engine.gguf.synced import AT_ONCE, SyncedMeanwhile
from gguflow.engine.graph import dtype_by_name
from gguflow.engine.requantize import WEIGHTED_SLAB, native_converter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signals are sent there")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 100 MB of which most is three matrices."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    return write_tiny(path, n_embd=512, n_ff=16384, n_layer=1)


def seconds_to_end(words: list[str], folder: Path, moment: float) -> float:
    """From Ctrl-C, so long after a part of the file is there, to the end of the process."""
    process = start(*words)
    until = time.monotonic() + 60
    while not any(folder.iterdir()):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    sent = time.perf_counter()
    _, err = process.communicate(timeout=60)
    seconds = time.perf_counter() - sent
    assert process.returncode == 130, err
    assert [*folder.iterdir()] == []
    return seconds


@pytest.mark.parametrize("kind", ["IQ4_XS", "Q6_K"])
def test_quantize_ends_at_once(large: Path, tmp_path: Path, kind: str) -> None:
    words = ["quantize", str(large), str(tmp_path / "out.gguf"), kind]
    # Others use the machine too: the least counts. A search to the end takes many times as long.
    moments = (0.02, 0.05, 0.1) if kind == "Q6_K" else (0.2, 0.7, 1.5)
    assert min(seconds_to_end(words, tmp_path, m) for m in moments) < 0.3


def test_types_with_a_search_are_converted_in_small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives a conversion up waits for the tasks in work."""
    by = native_converter(1)
    x = np.zeros((4096, 256), np.float32)
    real, rows = by.lib.cdll.gf_quantize_rows, []

    def counted(*args: object) -> int:
        rows.append(args[3].value)  # type: ignore[attr-defined]
        return int(real(*args))

    monkeypatch.setattr(by.lib.cdll, "gf_quantize_rows", counted)
    by.encode(dtype_by_name("iq4_xs"), x)
    assert sum(rows) == 4096 and max(rows) * 4 * 256 == native.SEARCHED_BYTES <= 1 << 19
    rows.clear()
    by.encode(dtype_by_name("q8_0"), x)
    assert rows == [4096]
    assert WEIGHTED_SLAB <= 1 << 17  # of the search in numpy, which is slower


def test_what_is_written_is_synced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    with open(tmp_path / "f", "wb") as file:
        monkeypatch.setattr("os.fsync", lambda fd: synced.append(fd))
        with SyncedMeanwhile(file) as meanwhile:
            meanwhile.wrote(AT_ONCE - 1)
            assert synced == []
            for _ in range(4):
                meanwhile.wrote(AT_ONCE)
        assert synced == [file.fileno()] * 4


@pytest.mark.parametrize("n", [1, 2])
def test_a_disk_that_fails_meanwhile_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with open(tmp_path / "f", "wb") as file:
        monkeypatch.setattr("os.fsync", fails)
        with pytest.raises(OSError, match="Input/output"), SyncedMeanwhile(file) as meanwhile:
            for _ in range(n):
                meanwhile.wrote(AT_ONCE)
