"""Adapter files: GGUF with `general.type` "adapter", as llama.cpp's convert_lora_to_gguf writes.

`<tensor>.lora_a` [rank, k] and `<tensor>.lora_b` [n, rank] change a weight [n, k] (those of experts
have one more dimension) by their product times alpha / rank, if `adapter.lora.alpha` is given. Of
token_embd.weight [n_vocab, k] lora_a is [n_vocab, rank] and lora_b [k, rank].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.gguf import GgufFile
from gguflow.engine.load import ModelSource, WeightSource, file_weight
from gguflow.models.base import ModelError

EMBEDDING = "token_embd.weight"
_A, _B = ".lora_a", ".lora_b"


@dataclass(frozen=True)
class Change:
    """What an adapter adds to a weight: its two matrices, by name, and their product's factor."""

    a: str
    b: str
    factor: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """changes: by the name of the weight. weights: the matrices, by their names in a model."""

    changes: dict[str, Change]
    weights: dict[str, WeightSource]


def read_adapter(path: str, index: int, source: ModelSource) -> Adapter:
    """The adapter of a file, as the index-th of a model. Raises GgufError for a bad file,
    ModelError naming the key or tensor that does not fit the model."""
    f = GgufFile.open(path)

    def wrong(text: str) -> ModelError:
        return ModelError(f"{path}: {text}")

    for key, expected in (
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", source.metadata.get("general.architecture")),
    ):
        if (found := f.keys.text(key, None)) != expected:
            raise wrong(f"{key} is {found!r}, expected {expected!r}")
    if "adapter.alora.invocation_tokens" in f.metadata:
        raise wrong(
            "adapter.alora.invocation_tokens: adapters that tokens invoke are not supported"
        )
    alpha = f.keys.real("adapter.lora.alpha", 0.0)

    changes: dict[str, Change] = {}
    weights: dict[str, WeightSource] = {}
    for name, info in f.tensors.items():
        if not name.endswith((_A, _B)):
            raise wrong(f"tensor {name}: neither lora_a nor lora_b of a weight")
        base = name[: -len(_A)]
        if name.endswith(_B):
            if base + _A not in f.tensors:
                raise wrong(f"tensor {base + _A} is missing")
            continue
        other = f.tensors.get(base + _B)
        if other is None:
            raise wrong(f"tensor {base + _B} is missing")
        of = list(_weights_of(base, source))
        if not of:
            raise wrong(f"tensor {name}: the model has no {base}")
        a, b = file_weight(f, info), file_weight(f, other)
        _check(base, a.shape, b.shape, of, wrong)
        factor = alpha / b.shape[-1] if alpha else 1.0
        start = 0
        for w in of:  # of a weight of several parts, each has its rows
            names = f"{w.name}{_A}.{index}", f"{w.name}{_B}.{index}"
            weights[names[0]] = replace(a, name=names[0])
            part = b if len(of) == 1 else _rows(b, start, w.shape[0])
            weights[names[1]] = replace(part, name=names[1])
            changes[w.name] = Change(*names, factor)
            start += w.shape[0]
    if not changes:
        raise wrong("there is no tensor in this adapter")
    return Adapter(changes, weights)


def _check(
    base: str,
    a: tuple[int, ...],
    b: tuple[int, ...],
    of: list[WeightSource],
    wrong: Callable[[str], ModelError],
) -> None:
    """Raises ModelError for matrices that do not fit the weights `of`."""
    if len(of[0].shape) < 2:
        raise wrong(f"tensor {base}{_A}: {base} is no matrix")
    *experts, n, k = of[0].shape
    if len(of) > 1:
        n = sum(w.shape[0] for w in of)
    rank = b[-1] if b else 0
    expected = ((n, rank), (k, rank)) if base == EMBEDDING else ((rank, k), (n, rank))
    if (a, b) != tuple((*experts, *shape) for shape in expected):
        raise wrong(
            f"tensors {base}{_A} {list(a)} and {base}{_B} {list(b)} do not fit "
            f"{base} {[*experts, n, k]}"
        )


def _weights_of(name: str, source: ModelSource) -> Iterator[WeightSource]:
    """The model's weight, or those that a file may hold as parts of it, in order."""
    if name in source.weights:
        yield source.weights[name]
        return
    parts = [s for s in source.arch.weights() if s.part is not None and s.part.of == name]
    for spec in sorted(parts, key=lambda s: s.part.start if s.part else 0):
        yield source.weights[spec.name]


def _rows(w: WeightSource, start: int, n: int) -> WeightSource:
    row = w.dtype.row_bytes(w.shape[1])
    return replace(w, shape=(n, w.shape[1]), read=lambda: w.read()[start * row : (start + n) * row])
