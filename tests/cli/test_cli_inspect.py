"""`gguflow inspect`: files, plans, memory; and `devices`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tiny_model import write_tiny

from gguflow.engine.gguf import GgufFile, Typed, write_gguf
from gguflow.engine.graph import F16, Role
from gguflow.engine.load import WeightStore
from gguflow.engine.model import Model
from gguflow.engine.plan_key import PAGE, step_key


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object) -> None:
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(WeightStore, "load", load)


def test_metadata_and_tensors(call, tiny_model: str) -> None:
    code, out, err = call("inspect", tiny_model)
    assert (code, err) == (0, "")
    assert call("inspect", "-m", tiny_model) == (0, out, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"{tiny_model}: GGUF v3")
    assert re.search(r"^llama.block_count +u32 +2$", out, re.M)
    tokens = next(line for line in lines if line.startswith("tokenizer.ggml.tokens"))
    assert '["<unk>", "<s>", "</s>"' in tokens and tokens.endswith("...] (96 items)")
    with GgufFile.open(tiny_model) as f:
        for t in f.tensors.values():
            row = next(line.split() for line in lines if line.split(" ")[0] == t.name)
            assert row[1] == "f32" and row[-2:] == [str(t.nbytes), str(t.offset)]
            assert " ".join(row[2:-2]) == str(list(t.shape))
    assert len(call("inspect", tiny_model, "--tensors")[1]) < len(out)


def test_json(call, tiny_model: str) -> None:
    code, out, _ = call("inspect", tiny_model, "--json")
    assert code == 0
    doc = json.loads(out)
    assert set(doc) == {"file", "metadata", "tensors"}
    assert doc["metadata"]["llama.embedding_length"] == 64
    tokens = doc["metadata"]["tokenizer.ggml.tokens"]
    assert (tokens["type"], tokens["length"], len(tokens["first"])) == ("arr[str]", 96, 6)
    full = json.loads(call("inspect", tiny_model, "--json", "--full")[1])
    assert len(full["metadata"]["tokenizer.ggml.tokens"]) == 96
    assert doc["file"]["n_tensors"] == len(doc["tensors"])
    with GgufFile.open(tiny_model) as f:
        for t in doc["tensors"]:
            info = f.tensors[t["name"]]
            assert (t["shape"], t["offset"]) == (list(info.shape), info.offset)


def test_unknown_architecture_and_odd_values(call, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    x = np.zeros((3, 4), np.float16)
    values = {
        "general.architecture": "warp", "a.nan": float("nan"), "a.bytes": Typed("str", "\udcff"),
        "a.nested": [[1, 2], [3]], "a.long": "x" * 500, "a.flag": True,
    }  # fmt: skip
    write_gguf(path, values, {"core": (F16, (3, 4), x)})
    code, out, err = call("inspect", str(path))
    assert (code, err) == (0, "")
    assert "core    f16   [3, 4]     24" in out and "... (502 characters)" in out
    doc = json.loads(call("inspect", str(path), "--json")[1])
    assert doc["file"]["architecture"] == "warp"
    assert doc["metadata"]["a.nan"] == "nan" and doc["metadata"]["a.bytes"] == "\\xff"
    assert doc["metadata"]["a.nested"] == [[1, 2], [3]] and doc["metadata"]["a.flag"] is True
    code, out, err = call("inspect", str(path), "--plan")
    assert (code, out) == (3, "") and "'warp' is not supported" in err


def test_vocabulary_only(call, shared_data: Path) -> None:
    code, out, _ = call("inspect", str(shared_data / "ggml-vocab-llama-bpe.gguf"))
    assert code == 0
    assert "(128256 items)" in out and out.endswith("no tensors\n")


def test_plan(call, tiny_model: str) -> None:
    code, out, err = call("inspect", tiny_model, "--plan", "--tokens", "5")
    assert (code, err) == (0, "")
    assert out.startswith("plan for 5 tokens a run\n")
    assert "segment 0: cpu" in out and "attention" in out and "with reuse" in out
    doc = json.loads(call("inspect", tiny_model, "--plan", "--json")[1])["plan"]
    plan = Model(*_source(tiny_model)).plan(step_key(1, "last", True))
    names = [op["name"] for s in doc["segments"] for op in s["ops"]]
    assert names == [n.name for n in plan.nodes]
    space = doc["spaces"]["host"]
    assert space["arena"] < space["arena_without_reuse"]
    parts = "weights", "states", "inputs", "results", "copies", "exchange", "arena", "scratch"
    assert space["total"] == sum(space[k] for k in parts)
    unfused = json.loads(call("inspect", tiny_model, "--plan", "--json", "--no-fuse")[1])["plan"]
    assert doc["fused"] and not unfused["fused"]
    assert len(names) < sum(len(s["ops"]) for s in unfused["segments"])


def _source(path: str):
    from gguflow.engine.load import open_model
    from gguflow.engine.options import Options

    return open_model(path), Options()


def test_memory_is_what_a_session_allocates(call, tiny_model: str, monkeypatch) -> None:
    args = ("-c", "50", "-ub", "20", "-ctk", "f32")
    doc = json.loads(call("inspect", tiny_model, "--memory", "--json", *args)[1])["memory"]
    assert (doc["n_ctx"], doc["n_ubatch"], doc["type_k"]) == (50, 20, "f32")
    monkeypatch.undo()
    from gguflow.engine.graph import F32

    model = Model.load(tiny_model, n_ctx=50, n_ubatch=20, k_type=F32)
    session = model.new_session()
    space = doc["spaces"]["host"]
    leaves = model.plan(step_key(20, "last", True)).leaves(Role.STATE)
    assert sum(session._runner.states[t.name].nbytes for t in leaves) <= space["states"]
    # Two layers, a page for 50 rows of 2 heads of 16 values: 4 bytes for keys, 2 for values.
    assert space["states"] == 2 * PAGE * 2 * 16 * (4 + 2)
    assert session._runner._arenas["host"].nbytes == space["arena"]
    assert space["weights"] >= sum(b.nbytes for b in model.weights.buffers.values())
    text = call("inspect", tiny_model, "--memory", *args)[1]
    assert f"{space['total']}" in text and "KV cache of f32 and f16" in text


def test_repacked_bytes_are_known_before_loading(call, monkeypatch) -> None:
    """What the forecast calls repacked is what loading packs."""
    shape = "smollm2-135m:Q4_0"
    doc = json.loads(call("inspect", "--random", shape, "--memory", "--json", "-c", "8")[1])
    monkeypatch.undo()
    model = Model.random(shape, n_ctx=8)
    told = doc["memory"]["spaces"]["host"]["repacked"]
    assert told == model.weights.repacked_bytes.get("host", 0)


def test_bad_combinations(call, tiny_model: str) -> None:
    for args, words in (
        ((tiny_model, "-m", tiny_model), "-m/--model and FILE exclude each other"),
        (("--random", "tinyllama-1.1b:Q4_0", "--metadata"), "--plan and --memory only"),
        (("-m", tiny_model, "--random", "tinyllama-1.1b:Q4_0", "--plan"), "exclude each other"),
        ((tiny_model, "--plan", "--tokens", "65"), "--tokens 65: more than the context of 64"),
    ):
        code, out, err = call("inspect", *args)
        assert (code, out) == (2, "") and words in err


def test_devices(call, run) -> None:
    code, out, err = call("devices")
    assert (code, err) == (0, "")
    machine, *devices = out.splitlines()
    assert "cores" in machine
    assert [d.split()[0] for d in devices if d[0] != " "] == [
        "cpu",
        "cuda",
        "null",
        "numpy",
        "simulated",
    ]
    assert "(in use)" in devices[0] and "baseline" in devices[0] and "GB/s read" in devices[1]
    done = run("devices", env={"GGUFLOW_CPU_ISA": "mmx"})
    assert done.returncode == 0
    assert "not available: CPU instruction set 'mmx'" in done.stdout


def test_shards_and_conversions_are_told(call, tmp_path: Path) -> None:
    """A tensor the model does not use is named with the memory."""
    extra = {"spare.weight": np.ones((2, 2), np.float32)}
    path = write_tiny(tmp_path / "m.gguf", weights=extra)
    code, out, _ = call("inspect", str(path), "--memory")
    assert code == 0 and "not used by llama: spare.weight" in out
