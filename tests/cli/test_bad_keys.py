"""Keys of a file that are not what they should be: one line that names file, key, found, expected.

Every command that reads the key is held to that: exit code 3 and nothing else, whatever the value.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import one_line_error
from tiny_model import write_tiny

from gguflow.engine.gguf import GgufError, GgufFile, Typed, write_gguf
from gguflow.engine.gguf.keys import KeyReader
from gguflow.engine.graph import I32, I64
from gguflow.engine.variants.relu import form
from gguflow.models.keys import Keys, ModelError

RAGGED = Typed("arr[arr[f32]]", [[1.0], [2.0, 3.0]])
LIST = Typed("arr[str]", ["llama", "qwen2"])
U64 = (1 << 64) - 1

# key -> values that no command may do anything with but refuse
BAD: dict[str, list[Any]] = {
    "general.architecture": [LIST, 7, Typed("arr[u32]", [1, 2]), RAGGED],
    ".block_count": [LIST, RAGGED, 1.5, "two", 0, Typed("u64", U64), Typed("i32", -1), True],
    ".attention.sliding_window": [Typed("u32", 1 << 31), Typed("arr[u32]", [4, 4]), RAGGED],
    ".attention.sliding_window_pattern": [RAGGED, "all", Typed("arr[u32]", [1, 1, 1])],
    ".feed_forward_length": [RAGGED, Typed("arr[u32]", [96] * 5), Typed("arr[f32]", [96.0, 96.0])],
    ".rope.freq_base": [float("nan"), Typed("f64", 1e300), RAGGED, -1.0],
    ".rope.scaling.type": [3, RAGGED],
    ".attention.layer_norm_rms_epsilon": ["small", float("inf")],
    ".some.key": [RAGGED],
    "tokenizer.ggml.scores": [RAGGED, Typed("arr[str]", ["a"] * 96), 1.0],
    "tokenizer.ggml.token_type": [RAGGED, Typed("arr[arr[i32]]", [[1]] * 96), "x"],
    "tokenizer.ggml.tokens": [RAGGED, 3, Typed("arr[u32]", [1] * 96)],
    "tokenizer.ggml.bos_token_id": [RAGGED, "1", Typed("u64", U64)],
    "tokenizer.ggml.add_bos_token": [1, RAGGED],
    "tokenizer.ggml.model": [LIST, 1],
}  # fmt: skip


def refused(call, *args: str, name: str) -> str:
    """The message of a command that ends with exit code 3, which names the file and `name`."""
    code, out, err = call(*args)
    assert (code, out) == (3, ""), (code, err)
    message = one_line_error(err)
    assert name in message, message
    return message


@pytest.mark.parametrize("key", BAD)
def test_bad_values(call, tmp_path: Path, key: str) -> None:
    for i, value in enumerate(BAD[key]):
        path = str(write_tiny(tmp_path / f"{i}.gguf", keys={key: value}))
        name = key.removeprefix(".")
        message = refused(call, "generate", "-m", path, "-p", "A", "-n", "1", name=name)
        assert path in message or "tokenizer" in key
        code, out, err = call("inspect", "-m", path, "--json")
        assert (code, err) == (0, "") or code == 3
        if code == 0:
            json.loads(out, parse_constant=lambda c: pytest.fail(c))


def test_stretched_positions(call, tmp_path: Path) -> None:
    yarn = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0}
    for key, value in (
        (".rope.scaling.original_context_length", Typed("u32", 1 << 31)),
        (".rope.scaling.original_context_length", 0),
        (".rope.scaling.yarn_beta_fast", 0.0),
        (".rope.scaling.yarn_beta_slow", -1.0),
        (".rope.scaling.factor", 1e-40),
        (".rope.scaling.factor", float("inf")),
        (".rope.freq_base", 1.0),
    ):
        path = str(write_tiny(tmp_path / "m.gguf", keys=yarn | {key: value}))
        refused(call, "generate", "-m", path, "-p", "A", name=key)


def test_very_long_values(call, tmp_path: Path) -> None:
    """Quoted by their beginning; shown in full where that is asked for."""
    text = "\x1b" * (1 << 21)
    bpe = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe"}
    cases: tuple[dict[str, Any], ...] = (
        {"general.architecture": text}, {".some.key": text}, {".rope.scaling.type": text},
        {"tokenizer.ggml.model": text}, bpe | {"tokenizer.ggml.pre": text},
        bpe | {"tokenizer.ggml.merges": [text]},
        {"tokenizer.ggml.tokens": [text, text, *map(str, range(94))]},
    )  # fmt: skip
    for i, keys in enumerate(cases):
        path = str(write_tiny(tmp_path / f"{i}.gguf", keys=keys))
        code, _, err = call("generate", "-m", path, "-p", "AB", "-n", "1")
        assert code == 3 and len(one_line_error(err)) < 10_000, i
        code, out, _ = call("inspect", "-m", path)
        assert code == 0 and len(out) < 20_000
        code, out, _ = call("inspect", "-m", path, "--json")
        assert code == 0 and len(out) < 50_000 and json.loads(out)
    path = str(write_tiny(tmp_path / "x.gguf", keys={"general.name": text}))
    found = json.loads(call("inspect", "-m", path, "--json", "--full")[1])["metadata"]
    assert found["general.name"] == text
    found = json.loads(call("inspect", "-m", path, "--json")[1])["metadata"]
    assert found["general.name"] == {"type": "str", "length": 1 << 21, "first": text[:100]}


@pytest.mark.parametrize("value", [RAGGED, "all", Typed("arr[str]", ["a", "b"]), float("nan"),
                                   Typed("arr[f32]", [1.0] * 3)])  # fmt: skip
def test_thresholds(call, tmp_path: Path, value: Any) -> None:
    keys = {".sparse_threshold": value}
    path = str(write_tiny(tmp_path / "m.gguf", "relullama", keys=keys, optional=("fc1.weight",
                          "fc2.weight", "output.weight")))  # fmt: skip
    refused(call, "generate", "-m", path, "-p", "A", name="sparse_threshold")
    code, out, err = call("inspect", "-m", path, "--json")
    assert code in (0, 3) and (code == 0 or "sparse_threshold" in one_line_error(err))


def test_files_beside_a_model(call, tmp_path: Path) -> None:
    """Splits, counts, predictors, adapters, importance matrices."""
    model = str(write_tiny(tmp_path / "m.gguf", "relullama"))
    path = str(tmp_path / "x.gguf")

    def write(metadata: dict[str, Any], **tensors: np.ndarray) -> None:
        kinds = {"int32": I32, "int64": I64}
        write_gguf(path, metadata, {n.replace("__", "."): (kinds[str(a.dtype)], a.shape, a)
                                    for n, a in tensors.items()})  # fmt: skip

    for bad in (LIST, RAGGED, 5):
        write({"general.architecture": bad})
        for args in (("sparse", "show", path),
                     ("sparse", "show", model, "--stats", path),
                     ("sparse", "solve", "-m", model, "--ffn-budget", "1", "--stats", path,
                      "--gpu-gbs", "1", "--host-gbs", "1", "--sync-us", "1"),
                     ("generate", "-m", model, "--predictor", path, "-p", "A"),
                     ("generate", "-m", model, "--lora", path, "-p", "A")):  # fmt: skip
            refused(call, *args, name="general.")
    split = "generic.gpu_index"
    for key in ("block_count", "architecture", "vram", "hash"):
        for bad in (LIST, RAGGED, Typed("i32", -5)):
            keys = {"general.architecture": split, f"{split}.block_count": 1}
            name = {"block_count": f"{split}.block_count", "vram": "split.vram_capacity",
                    "hash": "split.model_hash"}.get(key, "general.architecture")  # fmt: skip
            write(keys | {name: bad}, blk__0__gpu_idx=np.zeros(4, np.int32))
            refused(call, "sparse", "show", path, name=name)
    for name in ("activations.n_tokens", "activations.model_hash"):
        for bad in (LIST, RAGGED, Typed("i32", -5)):
            keys = {"general.architecture": "activations", "activations.n_tokens": 9,
                    "activations.model_hash": "x"}  # fmt: skip
            write(keys | {name: bad}, blk__0__activations=np.zeros(4, np.int64))
            refused(call, "sparse", "show", path, name=name)
    for name in ("block_count", "embedding_length", "feed_forward_length"):
        write({"general.architecture": "relullama", f"relullama.{name}": RAGGED})
        refused(call, "generate", "-m", model, "--predictor", path, "-p", "A", name=name)
    f32 = str(write_tiny(tmp_path / "f.gguf"))
    for name in ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"):
        write({"general.type": "imatrix", name: RAGGED})
        out = str(tmp_path / "q.gguf")
        refused(call, "quantize", "--imatrix", path, f32, out, "Q4_0", name=name)


def test_shard_counts(call, tmp_path: Path) -> None:
    for i, count in enumerate((0, 100_000, Typed("u64", U64), RAGGED)):
        path = tmp_path / f"m{i}-00001-of-00000.gguf"
        write_tiny(path, keys={"split.count": count})
        refused(call, "inspect", "-m", str(path), name="split.count")


def test_numbers_that_json_lacks(call, tmp_path: Path) -> None:
    keys = {"a": float("nan"), "b": Typed("arr[f32]", [float("inf"), float("-inf")])}
    path = str(write_tiny(tmp_path / "m.gguf", "relullama",
                          keys=keys | {".sparse_threshold": float("-inf")}))  # fmt: skip
    code, out, _ = call("inspect", "-m", path, "--json")
    found = json.loads(out, parse_constant=lambda c: pytest.fail(c))
    assert code == 0 and found["metadata"]["a"] == "nan" and found["sparse"]["threshold"] == "-inf"


@pytest.mark.parametrize("text", [
    "[]", "{}", "7", "nul", "[" * 100_000, '{"mode": [], "ms": {}, "active": 0}',
    '{"mode": "off", "ms": {"off": 1' + "0" * 400 + '}, "active": 0}',
    '{"mode": "off", "ms": {"off": NaN}, "active": 0}',
    '{"mode": "off", "ms": {"off": "1"}, "active": 0}',
    '{"mode": "off", "ms": [], "active": 0}',
    '{"mode": "off", "ms": {"off": 1.0}, "active": null}',
])  # fmt: skip
def test_kept_measurements(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.form.json"
    path.write_text(text)
    assert form._kept(path) is None


def test_one_reader_of_keys(tmp_path: Path) -> None:
    """What it raises names file, key, found and expected."""
    keys = KeyReader({"n": 7, "x": "text", "a": np.arange(3), "f": 1.5}, "model.gguf")
    assert keys.integer("n") == 7 and keys.real("n") == 7.0 and keys.integer("no", None) is None
    for read, message in (
        (lambda: keys.integer("n", most=6), "key 'n': found 7, expected 0 to 6"),
        (lambda: keys.integer("x"), "key 'x': found a str, expected int"),
        (lambda: keys.integer("f"), "key 'f': found a float, expected int"),
        (lambda: keys.text("a"), "key 'a': found an array of int64, expected a string"),
        (lambda: keys.flag("n"), "key 'n': found a int, expected a bool"),
        (lambda: keys.array("a", 4, "i"), "key 'a': found 3 entries, expected 4"),
        (lambda: keys.strings("a"), "key 'a': found an array of int64"),
        (lambda: keys.text("no"), "key 'no': found no such key, expected a string"),
    ):
        with pytest.raises(GgufError, match=f"^model.gguf: {message}"):
            read()
    with pytest.raises(ModelError, match=r"llama\.n: 7 is out of range 8\.\.9"):
        Keys({"llama.n": 7}, "llama").integer("n", least=8, most=9)
    path = write_tiny(tmp_path / "m.gguf")
    with GgufFile.open(path) as f:
        assert f.keys.integer("llama.block_count") == 2


# What may look a key up by itself: writers, what shows a file, what checks the type at once.
BY_THEMSELVES = {"engine/quantize.py", "engine/variants/relu/tools/embed.py", "cli/inspect.py",
                 "models/hparams.py", "models/chat.py", "engine/load/source.py",
                 "engine/variants/lora/source.py"}  # fmt: skip


def test_nobody_else_reads_keys() -> None:
    root = Path(__file__).resolve().parents[2]
    looks = re.compile(r"\bmetadata(\.get\(|\[)")
    found = {
        path.relative_to(root).as_posix()
        for folder in ("engine", "models", "cli")
        for path in (root / folder).rglob("*.py")
        if looks.search(path.read_text(encoding="utf-8"))
    }
    beside = {p for p in found if p.startswith(("engine/gguf/", "engine/convert/"))}
    assert found - beside == BY_THEMSELVES
