"""Which layers have experts, as configurations say it, and as GGUF does: none of the first n, and
of those after them every m-th of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .checkpoint import Config, ConvertError

FIRST, EVERY = "leading_dense_block_count", "interleave_moe_layer_step"


def sparse_layers(c: Config, fields: str, sparse: Sequence[bool]) -> dict[str, Any]:
    """The keys, none for a model whose layers all have experts. fields: of the configuration, that
    say it. Raises ConvertError naming them for layers that no keys are for."""
    n = len(sparse)
    first = next((i for i, has in enumerate(sparse) if has), n)
    for every in range(1, n + 1):
        if all(has == (i >= first and (i + 1) % every == 0) for i, has in enumerate(sparse)):
            keys = {FIRST: first, EVERY: every}
            return {k: v for k, v in keys.items() if v != (0 if k == FIRST else 1)}
    dense = [i for i, has in enumerate(sparse) if not has]
    raise ConvertError(
        f"{c.path}: {fields}: GGUF cannot say that the layers {dense} have no experts"
    )


def by_list(c: Config) -> dict[str, Any]:
    """Of Qwen: layers without experts by their numbers, and every n-th of the others has them."""
    alone, step = c.get("mlp_only_layers", default=[]), c.number("decoder_sparse_step", default=1)
    if not isinstance(alone, list) or not all(type(i) is int for i in alone):
        raise ConvertError(f"{c.path}: mlp_only_layers is {alone!r}, expected numbers of layers")
    step = _least_one(c, "decoder_sparse_step", step)
    has = [i not in alone and (i + 1) % step == 0 for i in range(c.layers)]
    return sparse_layers(c, "mlp_only_layers, decoder_sparse_step", has)


def by_first(c: Config) -> dict[str, Any]:
    """Of DeepSeek and GLM: all but the first; of these every n-th, or those of a list."""
    first = int(c.number("first_k_dense_replace", default=0))
    told = c.get("moe_layer_freq", default=1)
    if isinstance(told, list):
        if len(told) != c.layers:
            raise ConvertError(f"{c.path}: moe_layer_freq: {len(told)} for {c.layers} layers")
        has = [i >= first and bool(x) for i, x in enumerate(told)]
    else:
        step = _least_one(c, "moe_layer_freq", told)
        has = [i >= first and i % step == 0 for i in range(c.layers)]
    return {FIRST: 0} | sparse_layers(c, "first_k_dense_replace, moe_layer_freq", has)


def by_range(c: Config) -> dict[str, Any]:
    """Of ERNIE: every n-th of a range."""
    step = _least_one(c, "moe_layer_interval", c.number("moe_layer_interval", default=1))
    first = int(c.number("moe_layer_start_index", default=1))
    last = int(c.number("moe_layer_end_index", default=-1))
    last = c.layers - 1 if last == -1 else last
    has = [first <= i <= last and (i + 1) % step == 0 for i in range(c.layers)]
    fields = "moe_layer_interval, moe_layer_start_index, moe_layer_end_index"
    return {FIRST: 0, EVERY: 1} | sparse_layers(c, fields, has)


def _least_one(c: Config, field: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConvertError(f"{c.path}: {field} is {value!r}, expected a number from 1 on")
    return value
