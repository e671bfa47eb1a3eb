"""A checkpoint directory: config.json and the tensors of all its safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .quantized import quantization
from .safetensors import ConvertError, Stored, read_header

__all__ = ["Checkpoint", "Config", "ConvertError"]

INDEX = "model.safetensors.index.json"
MOST = 1e15  # of numbers that say something of a model
MAX_LAYERS = 1 << 12  # what loading takes
MAX_JSON = 256 << 20  # bytes; the largest tokenizer.json has some 30 MB


class Config:
    """config.json, those of a text model inside a multimodal one brought up. A key may have several
    names in the course of time."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        text = values.get("text_config")
        self.values = {**values, **(text if isinstance(text, dict) else {})}
        self.path = path

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these keys that is there and not null."""
        found = (self.values[n] for n in names if self.values.get(n) is not None)
        return next(found, default)

    def number(self, *names: str, default: float | None = None) -> Any:
        """The same for a number that has to be there unless it has a default."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConvertError(f"{self.path}: {names[0]} is {value!r}, expected a number")
        if not abs(value) < MOST:  # NaN too
            raise ConvertError(f"{self.path}: {names[0]} is {value!r}, expected less than {MOST:g}")
        return value

    @property
    def architecture(self) -> str:
        names = self.get("architectures", default=[])
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ConvertError(f"{self.path}: architectures is {names!r}, expected a list of names")
        return names[0]

    @cached_property
    def rope(self) -> dict[str, Any]:
        """Rotation: `rope_parameters` of transformers 5, or what was a few keys before. Of models
        with several kinds of layers, those of full attention."""
        params = self.get("rope_parameters")
        if not isinstance(params, dict):
            scaling = self.get("rope_scaling", default={})
            params = dict(scaling) if isinstance(scaling, dict) else {}
            params.setdefault("rope_type", params.pop("type", "default"))
            for key in ("rope_theta", "partial_rotary_factor"):
                if self.get(key) is not None:
                    params.setdefault(key, self.get(key))
        whole = params.get("full_attention")
        params = {**params, **whole} if isinstance(whole, dict) else params
        if params.get("original_max_position_embeddings") is None:
            old = self.get("original_max_position_embeddings", "max_position_embeddings")
            params = {**params, "original_max_position_embeddings": old}
        return params

    @property
    def head_dim(self) -> int:
        width, heads = self.number("hidden_size", "n_embd", "d_model"), self.heads
        return int(self.number("head_dim", default=width // heads))

    @property
    def heads(self) -> int:
        return self._at_least_one("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        return int(self.number("num_key_value_heads", "num_kv_heads", default=self.heads))

    @property
    def layers(self) -> int:
        n = self._at_least_one("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if n > MAX_LAYERS:
            raise ConvertError(f"{self.path}: {n} layers, expected at most {MAX_LAYERS}")
        return n

    def _at_least_one(self, *names: str) -> int:
        n = int(self.number(*names))
        if n < 1:
            raise ConvertError(f"{self.path}: {names[0]} is {n}, expected a number from 1 on")
        return n


class Checkpoint:
    """A directory. Raises ConvertError naming the file for what is missing or broken."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConvertError(f"{path}: no directory")
        self.config = Config(self.json("config.json"), self.path / "config.json")
        told = self.config.get("quantization_config", "compression_config")
        self.quantization = quantization(told, self.config.path)
        self.tensors = self._tensors()

    def json(self, name: str, needed: bool = True) -> dict[str, Any]:
        """A file's object; an empty one for a file that may be absent."""
        path = self.path / name
        if not path.is_file():
            if needed:
                raise ConvertError(f"{path}: there is no such file")
            return {}
        if path.stat().st_size > MAX_JSON:
            raise ConvertError(f"{path}: more than {MAX_JSON >> 20} MiB")
        try:
            value = json.loads(path.read_text("utf-8"))
        except (ValueError, OSError, RecursionError) as e:
            raise ConvertError(f"{path}: {e}") from None
        if not isinstance(value, dict):
            raise ConvertError(f"{path}: no JSON object")
        return value

    def check(self) -> None:
        """Raises ConvertError for a file of tensors that another program has changed since."""
        for tensor in self.tensors.values():
            if fault := tensor.fault():
                raise ConvertError(fault)

    def _tensors(self) -> dict[str, Stored]:
        """By name, in the order of the files."""
        index = self.json(INDEX, needed=False).get("weight_map")
        if index is not None:
            if not isinstance(index, dict) or not all(isinstance(f, str) for f in index.values()):
                raise ConvertError(f"{self.path / INDEX}: weight_map is no map of names to files")
            names = sorted(set(index.values()))
        else:
            names = sorted(p.name for p in self.path.glob("*.safetensors"))
        if not names:
            raise ConvertError(f"{self.path}: no safetensors files")
        found: dict[str, Stored] = {}
        for name in names:
            if Path(name).name != name:
                raise ConvertError(f"{self.path / INDEX}: {name!r} is no file of the directory")
            for tensor, stored in read_header(self.path / name).items():
                if tensor in found:
                    raise ConvertError(f"{self.path / name}: {tensor} is in another file too")
                found[tensor] = stored
        if index is not None:
            missing = next((t for t in index if t not in found), None)
            if missing is not None:
                raise ConvertError(f"{self.path / index[missing]}: {missing} is missing")
        return found
