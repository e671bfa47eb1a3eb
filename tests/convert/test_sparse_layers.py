"""Which layers have experts: what GGUF can say of it, and what it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguflow.engine.convert import ConvertError, convert
from gguflow.engine.convert.checkpoint import Config
from gguflow.engine.convert.sparse_layers import EVERY, FIRST, by_first, by_list, by_range
from gguflow.engine.gguf import GgufFile
from gguflow.models.base import architecture


def config(layers: int, **values: Any) -> Config:
    return Config({"num_hidden_layers": layers} | values, Path("config.json"))


@pytest.mark.parametrize(
    ("layers", "values", "keys"),
    [
        (4, {}, {}),
        (4, {"mlp_only_layers": [0]}, {FIRST: 1}),
        (4, {"mlp_only_layers": [1, 0]}, {FIRST: 2}),
        (6, {"decoder_sparse_step": 2}, {FIRST: 1, EVERY: 2}),
        (6, {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, {FIRST: 3, EVERY: 2}),
        (3, {"decoder_sparse_step": 4}, {FIRST: 3}),
        (2, {"mlp_only_layers": [0, 1]}, {FIRST: 2}),
    ],
)
def test_qwen(layers: int, values: dict[str, Any], keys: dict[str, int]) -> None:
    assert by_list(config(layers, **values)) == keys


@pytest.mark.parametrize(
    ("layers", "values", "keys"),
    [
        (4, {}, {FIRST: 0}),
        (4, {"first_k_dense_replace": 3}, {FIRST: 3}),
        (3, {"moe_layer_freq": [0, 1, 1]}, {FIRST: 1}),
        (3, {"moe_layer_freq": [1, 1, 1], "first_k_dense_replace": 2}, {FIRST: 2}),
        (4, {"moe_layer_freq": 2, "first_k_dense_replace": 1}, {FIRST: 2, EVERY: 3}),
    ],
)
def test_deepseek(layers: int, values: dict[str, Any], keys: dict[str, int]) -> None:
    assert by_first(config(layers, **values)) == keys


@pytest.mark.parametrize(
    ("layers", "values", "keys"),
    [
        (4, {}, {FIRST: 1, EVERY: 1}),
        (4, {"moe_layer_end_index": 3}, {FIRST: 1, EVERY: 1}),
        (8, {"moe_layer_interval": 2, "moe_layer_start_index": 2}, {FIRST: 3, EVERY: 2}),
        (5, {"moe_layer_interval": 2, "moe_layer_end_index": 3}, {FIRST: 1, EVERY: 2}),
    ],
)
def test_ernie(layers: int, values: dict[str, Any], keys: dict[str, int]) -> None:
    assert by_range(config(layers, **values)) == keys


@pytest.mark.parametrize(
    ("read", "values", "message"),
    [
        (by_list, {"mlp_only_layers": [2]}, r"mlp_only_layers, .*the layers \[2\] have no experts"),
        (by_list, {"mlp_only_layers": [5]}, "mlp_only_layers"),
        (by_list, {"mlp_only_layers": 5}, "mlp_only_layers is 5"),
        (by_list, {"mlp_only_layers": ["a"]}, "mlp_only_layers is"),
        (by_list, {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (by_first, {"moe_layer_freq": 2}, r"moe_layer_freq: .*layers \[1, 3, 5\]"),
        (by_first, {"moe_layer_freq": [1, 0]}, "moe_layer_freq: 2 for 6 layers"),
        (by_first, {"moe_layer_freq": 0}, "moe_layer_freq is 0"),
        (by_range, {"moe_layer_end_index": 4}, r"moe_layer_end_index: .*layers \[0, 5\]"),
        (by_range, {"moe_layer_interval": 1.5}, "moe_layer_interval is 1.5"),
    ],
)
def test_what_gguf_cannot_say(
    read: Callable[[Config], Any], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConvertError, match=f"config.json: .*{message}"):
        read(config(6, **values))


def test_layers_as_the_keys_say(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    convert(checkpoint("qwen3moelist"), tmp_path / "m.gguf")
    with GgufFile.open(tmp_path / "m.gguf") as f:
        found = [f"blk.{i}.ffn_gate_inp.weight" in f.tensors for i in range(4)]
        arch = architecture("qwen3moe").from_metadata(f.metadata, 290)
    assert found == [False, False, False, True]
    names = {spec.name for spec in arch.weights()}
    assert [f"blk.{i}.ffn_gate_inp.weight" in names for i in range(4)] == found


def test_a_checkpoint_of_other_layers(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Tensors that the configuration does not speak of are named, as are those that are missing."""
    source = checkpoint("qwen3moelist")
    path = source / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"mlp_only_layers": []}))
    with pytest.raises(ConvertError, match="tensor blk.1.ffn_gate_inp.weight is missing"):
        convert(source, tmp_path / "m.gguf")
