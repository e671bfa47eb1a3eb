"""Named model shapes with random weights, to measure speed without a file.

Speed does not depend on the values of the weights, only on shapes and element types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from gguflow.engine.dataclass import replace
from gguflow.engine.graph import DType

from .base import Architecture, architecture
from .hparams import HParams
from .keys import ModelError
from .mixes import find_mix, tensor_type
from .parts import Experts, Recurrent
from .planted import planted
from .planted import scale as planted_scale


def _llama(n_vocab: int, n_ctx: int, n_embd: int, n_layer: int, n_ff: int, n_head: int,
           n_head_kv: int, rope_base: float = 10000.0, arch: str = "llama",
           head_dim: int = 0, **more: Any) -> HParams:  # fmt: skip
    head_dim = head_dim or n_embd // n_head
    return HParams(arch, n_vocab, n_ctx, n_embd, n_layer, n_ff, n_head, n_head_kv, head_dim,
                   head_dim, 1e-5, head_dim, rope_base, **more)  # fmt: skip


def _delta(hp: HParams, n_group: int, n_head: int) -> HParams:
    """With gated delta nets of heads of 128 in three layers of four."""
    r = Recurrent(4, n_head, 128, n_group, 128)
    layers = tuple(r if (i + 1) % 4 else None for i in range(hp.n_layer))
    return replace(hp, recurrent=r, rope_dims=hp.head_dim // 4, by_layer={"recurrent": layers})


ROWS = 64  # of a random weight that are drawn; the others repeat them
# name -> (hyperparameters, tied embeddings)
SHAPES: dict[str, tuple[HParams, bool]] = {
    "smollm2-135m": (_llama(49152, 8192, 576, 30, 1536, 9, 3, 1e5), True),
    "tinyllama-1.1b": (_llama(32000, 2048, 2048, 22, 5632, 32, 4), False),
    "llama3.2-1b": (_llama(128256, 131072, 2048, 16, 8192, 32, 8, 5e5), True),
    "llama3.2-3b": (_llama(128256, 131072, 3072, 28, 8192, 24, 8, 5e5), True),
    "llama2-7b": (_llama(32000, 4096, 4096, 32, 11008, 32, 32), False),
    "mistral-7b": (_llama(32000, 32768, 4096, 32, 14336, 32, 8), False),
    "llama3-8b": (_llama(128256, 8192, 4096, 32, 14336, 32, 8, 5e5), False),
    "llama3-70b": (_llama(128256, 8192, 8192, 80, 28672, 64, 8, 5e5), False),
    "llama3-70b-10l": (_llama(128256, 8192, 8192, 10, 28672, 64, 8, 5e5), False),
    "qwen2.5-0.5b": (_llama(151936, 32768, 896, 24, 4864, 14, 2, 1e6, "qwen2"), True),
    "qwen3-0.6b": (_llama(151936, 40960, 1024, 28, 3072, 16, 8, 1e6, "qwen3", 128), True),
    "gemma2-2b": (_llama(256000, 8192, 2304, 26, 9216, 8, 4, 1e4, "gemma2", 256,
                         sliding_window=4096, attn_softcap=50.0, logit_softcap=30.0), True),
    "gemma3-1b": (_llama(262144, 32768, 1152, 26, 6912, 4, 1, 1e6, "gemma3", 256,
                         sliding_window=512, rope_base_window=1e4), True),
    "gemma3-4b": (_llama(262208, 131072, 2560, 34, 10240, 8, 4, 1e6, "gemma3", 256,
                         sliding_window=1024, rope_base_window=1e4), True),
    "phi3-mini": (_llama(32064, 4096, 3072, 32, 8192, 32, 32, 1e4, "phi3"), False),
    "falcon-7b": (_llama(65024, 2048, 4544, 32, 18176, 71, 1, 1e4, "falcon"), False),
    "olmoe-1b-7b": (_llama(50304, 4096, 2048, 16, 1024, 16, 16, 1e4, "olmoe",
                           experts=Experts(64, 8, 1024, norm=False)), False),
    "qwen3-30b-a3b": (_llama(151936, 40960, 2048, 48, 6144, 32, 4, 1e6, "qwen3moe", 128,
                             experts=Experts(128, 8, 768)), False),
    "gpt-oss-20b": (_llama(201088, 131072, 2880, 24, 2880, 64, 8, 1.5e5, "gpt-oss", 64,
                           sliding_window=128,
                           experts=Experts(32, 4, 2880, score="chosen")), False),
    "qwen3.5-0.8b": (_delta(_llama(248320, 262144, 1024, 24, 3584, 8, 2, 1e7, "qwen35", 256),
                            16, 16), True),
    "qwen3.5-9b": (_delta(_llama(248320, 262144, 4096, 32, 12288, 16, 4, 1e7, "qwen35", 256),
                          16, 32), False),
    "relu-tinyllama-1.1b": (_llama(32000, 2048, 2048, 22, 5632, 32, 4, arch="relullama"), False),
    "relullama-7b": (_llama(32000, 4096, 4096, 32, 11008, 32, 32, arch="relullama"), False),
}  # fmt: skip
# family -> which tensors that may be missing its published files have, and which they have in the
# place of their parts
PUBLISHED = {
    "falcon": (r"(output_norm|blk\.\d+\.attn_norm)\.bias", r".*\.attn_qkv\.weight"),
    "gpt-oss": (r".*\.(attn_[qkv]|attn_output|ffn_gate_inp|ffn_(gate|up|down)_exps)\.bias", ""),
    "phi3": ("", r".*\.(attn_qkv|ffn_up)\.weight"),
}
# Ranks of the predictors of ReLU shapes, whose neurons fire as `planted` says.
RANKS = {"relu-tinyllama-1.1b": 128, "relullama-7b": 256}


def parse_shape(text: str) -> tuple[Architecture, list[tuple[str, tuple[int, ...], DType]]]:
    """`tinyllama-1.1b:Q4_0` -> the architecture and its tensors (name, shape, type).

    Raises ModelError or MixError listing the names there are.
    """
    name, _, quant = text.partition(":")
    if name.lower() not in SHAPES:
        raise ModelError(f"unknown shape {name!r}; have {', '.join(SHAPES)}")
    hp, tied = SHAPES[name.lower()]
    mix = find_mix(quant or "Q4_0")
    arch = architecture(hp.arch)(hp)
    absent = {"output.weight"} if tied else set()
    there, wholes = (re.compile(x) for x in PUBLISHED.get(arch.name, ("", "")))
    group = hp.n_head // hp.n_head_kv
    rank = RANKS.get(name.lower())
    tensors = []
    for w in arch.weights():
        predictor = rank is not None and w.name.endswith((".fc1.weight", ".fc2.weight"))
        wanted = predictor or w.name == "output.weight" or there.fullmatch(w.name)
        if w.name in absent or (w.optional and not wanted):
            continue
        shape = tuple(rank if n == -1 and rank else n for n in w.shape)
        name = w.part.of if w.part is not None and wholes.fullmatch(w.part.of) else w.name
        dtype = tensor_type(mix, name, shape, hp.n_layer, group, tied)
        tensors.append((w.name, shape, dtype))
    return arch, tensors


def as_in_files(
    arch: Architecture, tensors: Sequence[tuple[str, tuple[int, ...], DType]]
) -> list[tuple[str, tuple[int, ...], DType]]:
    """The tensors of `parse_shape` as published files have them: some parts as one."""
    _, wholes = (re.compile(x) for x in PUBLISHED.get(arch.name, ("", "")))
    parts = {w.name: w.part for w in arch.weights()}
    found: dict[str, tuple[tuple[int, ...], DType]] = {}
    for name, shape, dtype in tensors:
        part = parts[name]
        if part is not None and wholes.fullmatch(part.of):
            found[part.of] = part.whole(shape), dtype
        else:
            found[name] = shape, dtype
    return [(name, shape, dtype) for name, (shape, dtype) in found.items()]


def shape_bytes(
    hp: HParams, rank: int, name: str, shape: tuple[int, ...], dtype: DType
) -> np.ndarray:
    """uint8 bytes of a tensor of a named shape. rank: of the predictors, 0 where there are none."""
    found = planted(hp, rank, name, shape, dtype) if rank else None
    if found is not None:
        return found
    return random_bytes(name, shape, dtype, planted_scale(name) if rank else 1.0)


def random_bytes(name: str, shape: tuple[int, ...], dtype: DType, gain: float = 1.0) -> np.ndarray:
    """uint8 bytes of a tensor with small random values; the same for the same name and shape.

    gain: of matrices; 1 keeps activations of the size of their inputs.
    """
    block = random_rows(name, shape, dtype, gain)
    return np.resize(block, prod(shape[:-1]) * block.shape[1])


def random_rows(name: str, shape: tuple[int, ...], dtype: DType, gain: float = 1.0) -> np.ndarray:
    """The first rows of `random_bytes`, uint8 [n, bytes of a row]; the others repeat them, which is
    fast and changes no timing."""
    from gguflow.engine.quants import encode

    rng = np.random.default_rng([*name.encode(), *shape])
    drawn = min(prod(shape[:-1]), ROWS)
    scale = 1.0 if len(shape) == 1 else gain * shape[-1] ** -0.5
    x = rng.standard_normal((drawn, shape[-1]), np.float32) * np.float32(scale)
    if len(shape) == 1:
        x = -np.ones_like(x) if name.endswith("ssm_a") else np.ones_like(x)  # a state decays
    return encode(dtype, x).view(np.uint8).reshape(drawn, -1)


def metadata(arch: Architecture) -> Iterator[tuple[str, object]]:
    """The GGUF keys that describe the shape, for writing it to a file."""
    yield from arch.keys()
