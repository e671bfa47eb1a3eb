"""`gguflow devices`: what there is, what it reaches, or why it cannot be used."""

from __future__ import annotations

import sys

import pytest

from gguflow.engine.backends import cpu
from gguflow.engine.backends.cpu import CpuBackend
from gguflow.engine.backends.null import NullBackend


def test_devices_and_what_they_reach(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(CpuBackend, "peaks", lambda self: (4550.2, 60_100.0, 134_000.0, 762_000.0))
    code, out, err = call("devices")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("cpu "))
    assert " threads; kernels: " in lines[at]
    assert lines[at + 1].split(maxsplit=1)[0] == "4,550"
    assert lines[at + 1].strip() == (
        "4,550 GB/s read, 60.1 TFLOP/s f32, 762.0 TFLOP/s f16, 134.0 TOP/s int8"
    )
    assert any(x.startswith("cuda ") and "not available: the GPU needs CuPy" in x for x in lines)


def test_a_backend_that_fails_is_a_line(call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: dict[str, object]) -> None:
        raise OSError("libgguflow.so: wrong machine")

    monkeypatch.setattr(cpu, "create", broken)
    code, out, _ = call("devices")
    assert code == 0 and "not available: libgguflow.so: wrong machine" in out


def test_every_device_of_a_kind(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullBackend, "n_alike", 3)
    code, out, _ = call("devices")
    assert code == 0
    assert [x.split()[0] for x in out.splitlines() if x.startswith("null")] == [
        "null", "null:1", "null:2",
    ]  # fmt: skip
