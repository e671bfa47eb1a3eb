"""A checkpoint as a GGUF file, a tensor at a time in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map
from gguf.constants import GGML_QUANT_VERSION, LlamaFileType

from gguflow.engine.gguf import Typed, write_gguf
from gguflow.engine.graph import F32, DType, dtype_by_name
from gguflow.engine.quants import decode, encode
from gguflow.models.base import ModelError, architecture
from gguflow.models.both_ways import check_both_ways
from gguflow.models.mixes import KEPT

from .activation import check_activation
from .checkpoint import Checkpoint, ConvertError
from .families import family_of
from .family import Family, Weight, direction_keys
from .fp8 import fp8, is_scale
from .mxfp4 import BLOCKS, SCALES, mxfp4
from .safetensors import F8
from .vocabulary import vocabulary

OutType = Literal["auto", "f32", "f16", "bf16", "q8_0"]
_SLAB = 8 << 20  # elements converted at a time
# Buffers that are no weights: masks, and angles that follow from the configuration.
_BUFFERS = (
    ".attention.masked_bias", ".attention.bias", ".attn.masked_bias", ".attn.bias",
    ".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached",
)  # fmt: skip
_FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}


def convert(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    out_type: OutType = "auto",
    pre: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[int, int]:
    """Write the model of a directory of transformers as GGUF; returns (tensors, bytes of them).

    out_type: of matrices; "auto" is bf16 where the checkpoint is, else f16. Vectors are f32.
    pre: name of the pre-tokenizer, where it cannot be told. progress: as of `write_gguf`.
    Raises ConvertError naming file, key or tensor, before anything is written.
    """
    source = Checkpoint(directory)
    family = family_of(source.config)
    matrices = _matrix_type(source, out_type)
    with _of_values(source, source.config.path.name):
        keys = _metadata(source, family, matrices)
        check_activation(source.config, family.arch)
        tensors = dict(_tensors(source, family, matrices))
    with _of_values(source, "tokenizer"):
        metadata = keys | vocabulary(source, pre)
    _check(family, metadata, {name: shape for name, (_, shape, _) in tensors.items()}, source)

    def written(done: int, total: int, name: str) -> None:
        if done == total:
            source.check()  # before the file gets its name
        if progress:
            progress(done, total, name)

    write_gguf(out, metadata, tensors, progress=written)
    return len(tensors), sum(t.array_bytes(shape) for t, shape, _ in tensors.values())


# What reading a value makes of one of another type, or of a number that no model has.
_UNFIT = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


@contextmanager
def _of_values(source: Checkpoint, name: str) -> Iterator[None]:
    """Families read values of many names and forms: one that is of another form than they have is
    an error of the file."""
    try:
        yield
    except ConvertError:
        raise
    except _UNFIT as e:
        raise ConvertError(
            f"{source.path / name}: a value that cannot be used: {type(e).__name__}: {e}"
        ) from e


def _matrix_type(source: Checkpoint, out_type: OutType) -> DType:
    if out_type != "auto":
        return dtype_by_name(out_type)
    kinds = {t.dtype.name for t in source.tensors.values() if len(t.shape) > 1}
    return dtype_by_name("bf16" if kinds & {"bf16", F8.name} else "f16")


def _metadata(source: Checkpoint, family: Family, matrices: DType) -> dict[str, Any]:
    name = source.config.get("_name_or_path") or source.path.resolve().name
    values = {
        "general.architecture": family.arch,
        "general.type": "model",
        "general.name": str(name).rstrip("/").rpartition("/")[2],
        "general.file_type": Typed("u32", int(LlamaFileType[_FILE_TYPES[matrices.name]])),
        "general.quantization_version": Typed("u32", GGML_QUANT_VERSION),
    }
    keys = {**family.keys(source.config), **direction_keys(source.config)}
    return values | {f"{family.arch}.{key}": v for key, v in keys.items()}


Written = tuple[DType, tuple[int, ...], Any]


def _tensors(source: Checkpoint, family: Family, matrices: DType) -> Iterator[tuple[str, Written]]:
    """(GGUF name, (type, shape, data)) of every tensor, in the checkpoint's order."""
    config = source.config
    table = family.arch.removeprefix("relu")  # whose activation is no matter of names
    arch = next((a for a, name in MODEL_ARCH_NAMES.items() if name == table), MODEL_ARCH.LLAMA)
    names = get_tensor_name_map(MODEL_ARCH(arch), config.layers)
    found = set()
    for name, values in family.extra(config).items():
        found.add(name)
        yield name, (F32, values.shape, values)
    for given in _stacked(source):
        name = given.name
        if name.endswith(_BUFFERS) or name in family.drop:
            continue
        if family.ahead and _predicts_ahead(name, config.layers):
            continue
        for w in family.change(config, given):
            known = _KNOWN.match(w.name)  # by its GGUF name already
            new = w.name if known else names.get_name(w.name, try_suffixes=(".weight", ".bias"))
            if new is None:
                raise ConvertError(
                    f"{source.path}: tensor {name}: {family.arch} has no such weight"
                )
            if new in found:
                raise ConvertError(f"{source.path}: tensor {name} is a second {new}")
            found.add(new)
            shift = family.shift if _is_shifted(new) else 0.0
            small = len(w.shape) < 2 or any(part in new for part in (*KEPT, *_PLAIN))
            dtype = F32 if small else _fitting(matrices, w.shape[-1])
            if w.dtype.is_quantized:
                dtype = w.dtype
            yield new, (dtype, w.shape, _data(w, dtype, shift, source))


_KNOWN = re.compile(r"(?:blk\.\d+|token_embd|position_embd|output_norm)\.")
# Numbers of recurrent layers that are no matrices, whatever their shape.
_PLAIN = ("ssm_a", "ssm_d", "ssm_norm", "_exps.bias")
_LAYER = re.compile(r"(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.(\d{1,5})\.")


def _predicts_ahead(name: str, n_layer: int) -> bool:
    """Whether a tensor is of layers beyond the last, which guess further tokens and are not run."""
    found = _LAYER.match(name)
    return name.startswith("mtp.") or (found is not None and int(found[1]) >= n_layer)


def _is_shifted(name: str) -> bool:
    """Whether a weight is of a norm that families with a shift store as what it adds to one."""
    return name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")


# Matrices of experts, each a tensor of its own in most checkpoints.
_EXPERT = re.compile(r"(.*\.experts)\.(\d{1,5})\.(\w+)\.weight")
# Norms of heads, likewise.
_HEADS = re.compile(r"(.*\.[qk]_layernorm)\.norms\.(\d{1,5})\.weight")
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def _stacked(source: Checkpoint) -> Iterator[Weight]:
    """The checkpoint's tensors, those of a layer's experts or heads as stacks."""
    stacks: dict[str, dict[int, Weight]] = {}
    for name in source.tensors:
        found, head = _EXPERT.fullmatch(name), _HEADS.fullmatch(name)
        if name.endswith(BLOCKS):
            yield mxfp4(name, source)
        elif name.endswith(SCALES) or is_scale(name, source):
            continue
        elif head is not None:
            stacks.setdefault(f"{head[1]}.weight", {})[int(head[2])] = _weight(name, source)
        elif found is None:
            yield _weight(name, source)
        else:
            prefix = found[1].replace("block_sparse_moe", "mlp")
            whole = f"{prefix}.{_MIXTRAL.get(found[3], found[3])}.weight"
            stacks.setdefault(whole, {})[int(found[2])] = _weight(name, source)
    for whole, each in stacks.items():
        if sorted(each) != list(range(len(each))):
            missing = next(i for i in range(len(each)) if i not in each)
            raise ConvertError(f"{source.path}: {whole}: number {missing} is missing")
        yield Weight.stack(whole, [each[i] for i in range(len(each))])


def _weight(name: str, source: Checkpoint) -> Weight:
    stored = source.tensors[name]
    return fp8(name, source) if stored.dtype is F8 else Weight.of(name, stored)


def _fitting(dtype: DType, n: int) -> DType:
    return dtype if n % dtype.block == 0 else dtype_by_name("f16")


def _data(
    w: Weight, dtype: DType, shift: float, source: Checkpoint
) -> Callable[[], Iterator[np.ndarray]]:
    def pieces() -> Iterator[np.ndarray]:
        for part in w.parts or (w,):
            yield from _converted(part, dtype, shift, source)

    return pieces


def _converted(w: Weight, dtype: DType, shift: float, source: Checkpoint) -> Iterator[np.ndarray]:
    """The bytes of a matrix in another type."""
    if w.dtype.is_quantized:
        yield np.ascontiguousarray(w.make()).reshape(-1)
        return
    for rows in w.slabs(_SLAB):
        part = np.ascontiguousarray(rows)
        if dtype == w.dtype and not shift:
            yield part.view(np.uint8).reshape(-1)
            continue
        x = decode(w.dtype, part, part.shape) + np.float32(shift)
        try:
            made = encode(dtype, x).view(np.uint8).reshape(-1)
        except ValueError as e:
            raise ConvertError(f"{source.path}: tensor {w.name}: {e}") from None
        if dtype.name == "f16" and not np.isfinite(made.view(np.float16)).all():
            raise ConvertError(
                f"{source.path}: tensor {w.name}: a value is beyond float16; use bf16 or f32"
            )
        yield made


def _check(
    family: Family,
    metadata: Mapping[str, Any],
    shapes: dict[str, tuple[int, ...]],
    source: Checkpoint,
) -> None:
    """Raises ConvertError for what the architecture would refuse to load."""
    embd = shapes.get("token_embd.weight")
    if embd is None or len(embd) != 2:
        raise ConvertError(f"{source.path}: no matrix of embeddings")
    try:
        plain = {k: v.value if isinstance(v, Typed) else v for k, v in metadata.items()}
        plain = {k: np.array(v) if isinstance(v, list) and k.startswith(f"{family.arch}.") else v
                 for k, v in plain.items()}  # fmt: skip
        arch = architecture(family.arch).from_metadata(plain, embd[0])
        for spec in arch.weights():
            whole = spec.part.of if spec.part else spec.name
            name = next((n for n in (spec.name, spec.transposed, whole) if n in shapes), None)
            if name is None and not spec.optional:
                raise ModelError(f"tensor {spec.name} is missing")
            held = (
                spec.part is not None
                and name == spec.part.of
                and shapes[name] == spec.part.whole(spec.shape)
            )
            if name == spec.name and not held and not spec.fits(shapes[name]):
                raise ModelError(f"tensor {name}: {list(shapes[name])} for {list(spec.shape)}")
        arch.check(shapes)
        check_both_ways(arch)
    except ModelError as e:
        raise ConvertError(f"{source.path}: {e}") from None
