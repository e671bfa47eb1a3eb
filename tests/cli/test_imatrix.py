"""Importance matrices: what is summed, both file formats, and what quantizing makes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.gguf import GgufError, GgufFile
from gguflow.engine.imatrix import measure, read_imatrix, write_imatrix
from gguflow.engine.model import Model
from gguflow.engine.quantize import plan_changes
from gguflow.engine.quants import decode
from gguflow.engine.taps import tapped

Call = Callable[..., tuple[int, str, str]]
CHUNKS = [[1, *range(10, 40)], [1, *range(40, 60)]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imatrix") / "m.gguf"
    return Path(write_tiny(path, n_embd=256, n_ff=256, head_dim=64, head_dim_v=64, rope_dims=64))


def test_sums_are_of_the_inputs(model: Path) -> None:
    loaded = Model.load(model)
    found = measure(loaded, CHUNKS, "ids")
    layer = {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}
    assert set(found.entries) == {f"blk.{i}.{p}.weight" for i in (0, 1) for p in layer}
    sums = np.zeros(256)
    for (x,) in tapped(loaded, ["blk.1.ffn.norm"], CHUNKS, fuse=False):
        sums += (x.astype(np.float64) ** 2).sum(axis=0)
    entry = found.entries["blk.1.ffn_up.weight"]
    assert np.allclose(entry.sums[0], sums, rtol=1e-5)
    assert entry.counts.tolist() == [52]
    assert found.n_chunks == 2 and found.chunk_size == 31


def test_files_are_read_back(model: Path, tmp_path: Path) -> None:
    found = measure(Model.load(model), CHUNKS, "some.txt")
    path = tmp_path / "i.gguf"
    write_imatrix(path, found)
    again = read_imatrix(path)
    assert again.datasets == ("some.txt",) and again.n_chunks == 2 and again.chunk_size == 31
    for name, entry in found.entries.items():
        assert np.allclose(again.entries[name].means, entry.means, rtol=1e-6)
    with GgufFile.open(path) as f:
        assert f.tensors["blk.0.attn_q.weight.in_sum2"].shape == (1, 256)
        assert f.tensors["blk.0.attn_q.weight.counts"].shape == (1, 1)


def old_file(entries: dict[str, tuple[int, list[float]]], chunks: int = 7) -> bytes:
    raw = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        raw += struct.pack("<i", len(name)) + name.encode()
        raw += struct.pack("<2i", calls, len(values)) + struct.pack(f"<{len(values)}f", *values)
    return raw + struct.pack("<2i", chunks, 4) + b"text"


def test_the_old_format(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    raw = old_file({"a.weight": (2, [2.0, 4.0]), "b.weight": (1, [3.0])})
    path.write_bytes(raw)
    found = read_imatrix(path)
    assert found.entries["a.weight"].means.tolist() == [[1.0, 2.0]]
    assert found.datasets == ("text",) and found.n_chunks == 7
    for n in range(4, len(raw) - 12):
        path.write_bytes(raw[:n])
        with pytest.raises(GgufError, match="i.dat"):
            read_imatrix(path)
    path.write_bytes(old_file({"a.weight": (2, [2.0, -4.0])}))
    with pytest.raises(GgufError, match="a.weight"):
        read_imatrix(path)


INT = struct.pack("<i", -1)


@pytest.mark.parametrize(
    ("at", "raw", "message"),
    [
        (0, struct.pack("<i", 0), "byte 0: entries: found 0"),
        (0, INT, "byte 0: entries: found -1"),
        (0, struct.pack("<i", 3), "byte 53: found 1 left, expected 4 more bytes"),
        (4, struct.pack("<i", 1 << 30), "byte 4: length of a name"),
        (4, struct.pack("<i", 0), "byte 4: length of a name"),
        (9, INT, "byte 9: calls"),
        (13, struct.pack("<i", 1 << 28), "byte 17: found 37 left, expected 1073741824 more bytes"),
        (13, struct.pack("<i", 0), "byte 13: values"),
        (17, struct.pack("<f", float("nan")), "a: found sums that are negative or no numbers"),
        (29, b"a", "byte 25: a: found a second entry"),
        (42, INT, "byte 42: chunks"),
        (46, struct.pack("<i", 5), "byte 50: found 4 left, expected 5 more bytes"),
    ],
)
def test_damage_to_the_old_format(tmp_path: Path, at: int, raw: bytes, message: str) -> None:
    whole = old_file({"a": (2, [2.0, 4.0]), "b": (1, [3.0])})
    path = tmp_path / "i.dat"
    path.write_bytes(whole[:at] + raw + whole[at + len(raw) :])
    with pytest.raises(GgufError, match=message):
        read_imatrix(path)


def test_the_old_format_may_end_early(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    raw = old_file({"a.weight": (2, [2.0, 4.0])})
    for end, chunks, texts in ((-12, 0, ()), (-8, 7, ()), (None, 7, ("text",))):
        path.write_bytes(raw[:end])
        found = read_imatrix(path)
        assert (found.n_chunks, found.datasets) == (chunks, texts)
        assert list(found.entries) == ["a.weight"]


def test_experts_of_the_old_format(call: Call, tmp_path: Path) -> None:
    """All experts of a weight are in one row there; what is made of it is the same."""
    path = write_tiny(tmp_path / "m.gguf", "qwen3moe")
    found = measure(Model.load(path), CHUNKS, "ids")
    new, old = tmp_path / "i.gguf", tmp_path / "i.dat"
    write_imatrix(new, found)
    means = {name: e.means for name, e in read_imatrix(new).entries.items()}
    old.write_bytes(old_file({name: (1, m.reshape(-1).tolist()) for name, m in means.items()}))
    made = []
    for matrix in (new, old):
        out = tmp_path / f"{matrix.name}.out"
        args = "quantize", "--imatrix", str(matrix), str(path), str(out), "IQ4_NL"
        assert call(*args)[0] == 0
        with GgufFile.open(out) as f:
            assert f.tensors["blk.0.ffn_up_exps.weight"].dtype.name == "iq4_nl"
            made.append({name: bytes(f.data(name)) for name in f.tensors})
    assert made[0] == made[1]
    plain = tmp_path / "plain.out"
    assert call("quantize", str(path), str(plain), "IQ4_NL")[0] == 0
    with GgufFile.open(plain) as f:
        name = "blk.0.ffn_up_exps.weight"
        assert bytes(f.data(name)) != made[1][name]


def test_quantizing_with_it(call: Call, model: Path, tmp_path: Path) -> None:
    text, matrix = tmp_path / "t.txt", tmp_path / "i.gguf"
    text.write_text("!\"#$%&'()*+,-./0123456789" * 40)
    code, _, err = call("imatrix", "-m", str(model), "-f", str(text), "-o", str(matrix),
                        "-c", "32", "--chunks", "3")  # fmt: skip
    assert code == 0 and "14 weights on 3 windows" in err
    plain, weighted = tmp_path / "plain.gguf", tmp_path / "weighted.gguf"
    assert call("quantize", str(model), str(plain), "Q4_K_M")[0] == 0
    assert call("quantize", "--imatrix", str(matrix), str(model), str(weighted), "Q4_K_M")[0] == 0
    means = read_imatrix(matrix).entries
    name = "blk.0.ffn_down.weight"
    errors = []
    for path in (plain, weighted):
        with GgufFile.open(path) as f, GgufFile.open(model) as original:
            info = f.tensors[name]
            x = decode(info.dtype, f.data(name), info.shape)
            y = decode("f32", original.data(name), info.shape)
            errors.append(float((((x - y) ** 2) * means[name].means).sum()))
    assert errors[1] < 0.98 * errors[0]
    with GgufFile.open(weighted) as f:
        assert f.metadata["quantize.imatrix.entries_count"] == 14
        assert f.metadata["quantize.imatrix.chunks_count"] == 3


def test_what_is_refused(call: Call, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "o.dat"
    args = "--imatrix", str(other), str(model), str(tmp_path / "x.gguf"), "Q4_K_M"
    code, _, err = call("quantize", *args)
    assert code == 3 and f"{other}: file: found No such file" in err
    other.write_bytes(old_file({"no.weight": (1, [1.0])}))
    code, _, err = call("quantize", *args)
    assert code == 3 and "importance matrix" in err
    other.write_bytes(old_file({"blk.0.attn_q.weight": (1, [1.0])}))
    code, _, err = call("quantize", *args)
    assert code == 3 and "blk.0.attn_q.weight" in err


def test_mixes_with_an_importance_matrix(model: Path) -> None:
    with GgufFile.open(model) as f:
        for mix, first in (("IQ4_XS", "iq4_xs"), ("Q4_0", "q4_0")):
            types = {c.info.name: c.target.name for c in plan_changes(f, mix, weighted=True)}
            assert types["blk.1.ffn_down.weight"] == first


def test_experts_are_measured_by_what_they_were_given(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "qwen3moe")
    loaded = Model.load(path)
    found = measure(loaded, CHUNKS, "ids").entries
    e, hp = found["blk.0.ffn_up_exps.weight"], loaded.hp.experts
    assert hp is not None and e.sums.shape == (hp.n, loaded.hp.n_embd)
    assert e.counts.sum() == 52 * hp.n_used
    # Summed over the experts, every token counts as often as it has experts.
    router = found["blk.0.ffn_gate_inp.weight"]
    assert np.allclose(e.sums.sum(axis=0), hp.n_used * router.sums[0], rtol=1e-6)
    assert found["blk.0.ffn_down_exps.weight"].sums.shape == (hp.n, hp.n_ff)
    write_imatrix(tmp_path / "i.gguf", measure(loaded, CHUNKS, "ids"))
    again = read_imatrix(tmp_path / "i.gguf").entries["blk.0.ffn_up_exps.weight"]
    assert np.allclose(again.means, e.means, rtol=1e-6)
