"""`gguflow verify`: sound models pass, and what is planted is found and named."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reference_families import FAMILIES, reference
from tiny_model import write_tiny

from gguflow.cli.main import main
from gguflow.engine.backends.cpu.abi import GfOp
from gguflow.engine.backends.cpu.native import CpuLibrary
from gguflow.engine.load import open_model
from gguflow.engine.options import Options
from gguflow.engine.verify import LogitsError, Report, Settings, read_logits, verify
from gguflow.engine.verify.logits import GivenLogits, Window, log_softmax

TEXT = "!\"#$%&'()*+,-./0123456789" * 4
SHORT = Settings(n_prompt=9, n_decode=2)


def check(path: Path, settings: Settings = SHORT, **options: object) -> Report:
    return verify(open_model(path), Options(**options), TEXT, settings)


Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def wrap_kernel(
    monkeypatch: pytest.MonkeyPatch, op: str, after: Callable[[int, GfOp], None]
) -> None:
    """Call `after` with the number of the call and the record whenever the op's kernel has run."""
    symbol, address = f"gf_op_{op}", CpuLibrary.address
    kernels: list[object] = []
    n = 0

    def wrapped(lib: CpuLibrary, name: str) -> int:
        found = address(lib, name)
        if name != symbol:
            return found
        real = Kernel(found)

        def run(record: int, thread: int) -> None:
            nonlocal n
            real(record, thread)
            n += 1
            after(n - 1, GfOp.from_address(record))

        kernels.append(Kernel(run))
        return ctypes.cast(kernels[-1], ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    monkeypatch.setattr(CpuLibrary, "address", wrapped)


def first_value(record: GfOp) -> ctypes.c_float:
    return ctypes.c_float.from_address(record.dst.data)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_sound_model_passes(tmp_path: Path, fuse: bool) -> None:
    report = check(write_tiny(tmp_path / "m.gguf", dtype="q8_0"), fuse=fuse)
    assert report.ok and report.fault is None, report
    assert {r.run for r in report.rows} == {"prompt of 9", "token 1", "token 2"}
    assert len(report.rows) > 40 and max(r.error for r in report.rows) > 0
    whole = next(c for c in report.checks if c.name == "programs")
    assert "to the bit" in whole.text


def test_a_fault_of_one_kernel_in_one_layer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second layer's attention is off in one value; everything after it is wrong and is not
    blamed."""
    path = write_tiny(tmp_path / "m.gguf")

    def perturb(n: int, record: GfOp) -> None:
        if n == 1:
            first_value(record).value += 0.5

    wrap_kernel(monkeypatch, "attention", perturb)
    report = check(path, n_threads=1)
    fault = report.fault
    assert not report.ok and fault is not None
    assert (fault.name, fault.op, fault.run) == ("blk.1.attn.kqv", "attention", "prompt of 9")
    assert [r for r in report.rows if not r.ok] == [fault]


def test_the_op_that_makes_nan_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny(tmp_path / "m.gguf")

    def spoil(n: int, record: GfOp) -> None:
        if n == 3:  # the token after the prompt, in the second of two layers
            first_value(record).value = float("nan")

    wrap_kernel(monkeypatch, "attention", spoil)
    report = check(path, n_threads=1)
    fault = report.fault
    assert fault is not None and (fault.name, fault.run) == ("blk.1.attn.kqv", "token 1")
    said = next(c for c in report.checks if c.name == "activations")
    assert said.ok is False and "blk.1.attn.kqv" in said.text
    assert "its operands were finite" in said.text


def test_a_program_that_differs_from_its_ops_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that shows only between ops: here, in the runs that are not shadowed."""
    path = write_tiny(tmp_path / "m.gguf")
    shadowed = 2 * 3  # layers, runs

    def perturb(n: int, record: GfOp) -> None:
        if n >= shadowed:
            first_value(record).value += 5

    wrap_kernel(monkeypatch, "attention", perturb)
    report = check(path, n_threads=1)
    assert report.fault is None and not report.ok
    assert [c.name for c in report.checks if c.ok is False] == ["programs"]


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    bad = np.ones((64, 64), np.float32)
    path = write_tiny(tmp_path / "m.gguf")
    source = open_model(path)
    shape = source.weights["blk.1.ffn_up.weight"].shape
    bad = np.ones(shape, np.float32)
    bad[3, 5] = np.nan
    path = write_tiny(tmp_path / "n.gguf", weights={"blk.1.ffn_up.weight": bad})
    report = check(path)
    failed = {c.name: c.text for c in report.checks if c.ok is False}
    assert "blk.1.ffn_up.weight (1 values)" in failed["finite"]
    assert "blk.1" in failed["activations"] and "finite" in failed["activations"]


def test_another_device_gives_the_same(tmp_path: Path) -> None:
    from gguflow.engine.backends.base import DeviceId

    path = write_tiny(tmp_path / "m.gguf", dtype="q4_0", n_ff=128)
    settings = Settings(9, 2, weights=False, text=False, ops=False, against=DeviceId("numpy"))
    report = check(path, settings)
    assert report.difference is not None and report.difference.n == 11
    assert report.ok and 0 < report.difference.kl < 1e-3


def write_llama_cpp(path: Path, n_ctx: int, ids: list[int], logits: np.ndarray) -> None:
    """As perplexity.cpp's log_softmax and process_logits write it."""
    n_vocab = logits.shape[1]
    n_chunk = len(ids) // n_ctx
    out = [b"_logits_", struct.pack("<3i", n_ctx, n_vocab, n_chunk)]
    out.append(np.array(ids[: n_chunk * n_ctx], "<i4").tobytes())
    for c in range(n_chunk):
        for row in logits[c * n_ctx + n_ctx // 2 : (c + 1) * n_ctx - 1]:
            top = row.max()
            least = max(row.min(), top - 16)
            total = np.log(np.exp(row - top).sum())
            scale = (top - least) / 65535
            steps = np.where(row > least, np.rint((row - least) / scale), 0)
            padded = np.zeros(2 * ((n_vocab + 1) // 2), "<u2")
            padded[:n_vocab] = steps
            out.append(struct.pack("<2f", scale, least - top - total) + padded.tobytes())
    path.write_bytes(b"".join(out))


@pytest.mark.parametrize("kind", ["npz", "llama.cpp"])
@pytest.mark.parametrize("off", [0.0, 1.0])
def test_another_programs_logits(
    architectures_data: Path, tmp_path: Path, kind: str, off: float,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Those of the family's own implementation; with a token made likelier they are refused."""
    model, ids, logits = reference(architectures_data, "llama")
    logits = logits.copy()
    logits[:, 7] += off * 6
    path = tmp_path / "logits"
    if kind == "npz":
        np.savez(tmp_path / "logits.npz", ids=ids, logits=logits)
        path = tmp_path / "logits.npz"
    else:
        write_llama_cpp(path, len(ids), ids, logits)
    command = ["verify", str(model), "--only", "text", "--json", "--against", f"llama.cpp:{path}"]
    code = main(command)
    d = json.loads(capsys.readouterr().out)["difference"]
    assert code == (5 if off else 0)
    assert d["n"] == (len(ids) if kind == "npz" else len(ids) - 1 - len(ids) // 2)
    assert d["ok"] is not bool(off) and d["kl"] < (9 if off else 1e-4)


@pytest.mark.parametrize(
    "raw, said",
    [
        (b"hello", "neither logits"),
        (b"_logits_\1", "ends within"),
        (b"_logits_" + struct.pack("<3i", 1 << 30, 4, 1), "windows of 1073741824"),
        (b"_logits_" + struct.pack("<3i", 64, 4, 1000), "too few for 1000 windows"),
        (b"_logits_" + struct.pack("<6i", 2, 4, 1, 0, 0, 0) + bytes(24), "windows of 2"),
        (b"_logits_" + struct.pack("<3i16x2f8x", 4, 4, 1, np.inf, 0), "no log probability"),
        (b"_logits_" + struct.pack("<3i16x2f8x", 4, 4, 1, 0, 9), "no log probability"),
        (b"PK\3\4" + bytes(40), "File is not a zip file"),
    ],
)
def test_damaged_logits_are_refused(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(raw)
    with pytest.raises(LogitsError, match=said):
        read_logits(str(path), 4, None, 8)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_tiny(tmp_path / "m.gguf"))
    assert main(["verify", path, "--tokens", "5", "--decode", "1", "--full"]) == 0
    out = capsys.readouterr().out
    assert "blk.1.attn.kqv" in out and out.endswith("all in order\n")
    assert "round trips" in out and "no weight holds NaN" in out
    assert main(["verify", path, "--against", "abacus"]) == 2
    assert "--against abacus" in capsys.readouterr().err
    assert main(["verify", path, "--only", "weight"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes(architectures_data: Path, family: str) -> None:
    """Each op by its reference, and the logits by the family's own implementation."""
    model, ids, logits = reference(architectures_data, family)
    given = GivenLogits("given", logits.shape[1], [Window(ids, 0, log_softmax(logits))])
    report = verify(open_model(model), Options(n_threads=1), TEXT, Settings(12, 1, against=given))
    assert report.ok, (report.fault, report.checks, report.difference)
    assert report.difference is not None and report.difference.kl < 1e-5
