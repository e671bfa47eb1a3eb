"""What `quantization_config` says of a checkpoint's weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguflow.engine.dataclass import dataclass

from .safetensors import ConvertError

KINDS = ("fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4")
BLOCK = (128, 128)  # of weights that share a scale, where nothing is said


@dataclass(frozen=True)
class Quantization:
    """kind: one of KINDS, "" for none. block: rows and columns that share a scale, where scales are
    of blocks."""

    kind: str
    block: tuple[int, int]


def quantization(q: Any, path: Path) -> Quantization:
    """q: the value of the key in the file `path`. Raises ConvertError naming a kind, or a detail of
    it, that is not read."""
    if q is None:
        return Quantization("", BLOCK)

    def refused(what: str, found: Any) -> ConvertError:
        return ConvertError(f"{path}: quantization_config: {what} {found!r} is not supported")

    kind = q.get("quant_method") if isinstance(q, dict) else q
    if kind not in KINDS:
        raise ConvertError(
            f"{path}: quantization_config: quant_method {kind!r} is not supported; have "
            f"{', '.join(KINDS)}"
        )
    assert isinstance(q, dict)
    block = q.get("weight_block_size")
    if kind == "fp8" and q.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise refused("fmt", q["fmt"])
    if kind == "compressed-tensors":
        if q.get("format", "float-quantized") not in ("float-quantized", "naive-quantized"):
            raise refused("format", q["format"])
        if q.get("transform_config"):
            raise refused("transform_config", q["transform_config"])
        sparsity = q.get("sparsity_config") or {}
        if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
            raise refused("sparsity_config", sparsity)
        blocks = [_compressed(group, refused) for group in _groups(q, refused)]
        block = next((b for b in blocks if b), None)
        if any(b and b != block for b in blocks):
            raise refused("blocks of several sizes", blocks)
    if block is None:
        return Quantization(kind, BLOCK)
    whole = isinstance(block, list) and len(block) == 2
    if not whole or not all(type(n) is int and n > 0 for n in block):
        raise refused("blocks of", block)
    return Quantization(kind, (block[0], block[1]))


def _groups(q: dict[str, Any], refused: Any) -> Iterable[Any]:
    groups = q.get("config_groups")
    if not isinstance(groups, dict):
        raise refused("config_groups", groups)
    return groups.values()


def _compressed(group: Any, refused: Any) -> Any:
    """The blocks of a group of layers; None where scales are of rows or of whole matrices."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise refused("weights", weights)
    for key, known in (("type", ("float",)), ("num_bits", (8,)), ("symmetric", (True,)),
                       ("strategy", ("tensor", "channel", "block"))):  # fmt: skip
        if weights.get(key, known[0]) not in known:
            raise refused(f"weights' {key}", weights[key])
    return weights.get("block_structure") if weights.get("strategy") == "block" else None
