"""What an architecture is: hyperparameters, a list of weights, a graph; and the registry.

An architecture is one file in this directory that subclasses `Architecture`; it is found by being
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.found import modules_in
from gguflow.engine.gguf.errors import show
from gguflow.engine.graph import Graph, Tensor

from .batch import Batch, CacheLayer, StateLayer
from .hparams import HParams
from .keys import ModelError


@dataclass(frozen=True)
class Part:
    """Rows from `start` on of a tensor of n_rows, in which a file may hold several weights; of a
    stack of matrices, those rows of each."""

    of: str
    start: int
    n_rows: int

    @staticmethod
    def _axis(shape: tuple[int, ...]) -> int:
        return max(len(shape) - 2, 0)

    def rows_of(self, shape: tuple[int, ...]) -> int:
        """How many rows a part of this shape has."""
        return shape[self._axis(shape)]

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor that a part of this shape is of."""
        axis = self._axis(shape)
        return (*shape[:axis], self.n_rows, *shape[axis + 1 :])


@dataclass(frozen=True)
class WeightSpec:
    """A tensor the architecture expects: name, shape in numpy order, whether it may be absent.

    shape: -1 stands for a dimension that the file decides. transposed: the name of a tensor that
    holds the same matrix the other way round and may stand in for this one. part: so may these rows
    of another one. plain: kernels read it as float32, as they do all vectors.
    """

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    transposed: str = ""
    part: Part | None = None
    plain: bool = False

    def of_layer(self, i: int) -> WeightSpec:
        """The same tensor of layer i, named as files do."""
        other = self.transposed and f"blk.{i}.{self.transposed}"
        part = self.part and replace(self.part, of=f"blk.{i}.{self.part.of}")
        return replace(self, name=f"blk.{i}.{self.name}", transposed=other, part=part)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape is what is expected."""
        return len(shape) == len(self.shape) and all(
            n in (-1, m) for n, m in zip(self.shape, shape, strict=True)
        )


class Architecture:
    """Base of all architectures. Subclassing with a `name` registers the class."""

    name: ClassVar[str] = ""

    def __init__(self, hp: HParams) -> None:
        self.hp = hp

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Architecture:
        """The architecture as a file's keys describe it. n_vocab: rows of the embedding table.

        Raises ModelError naming the key.
        """
        raise NotImplementedError

    def keys(self) -> Iterator[tuple[str, Any]]:
        """The keys that describe it in a file."""
        raise NotImplementedError

    def weights(self) -> Iterator[WeightSpec]:
        """Every tensor the architecture reads."""
        raise NotImplementedError

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ModelError for tensors (name -> shape) that each fit, but not together."""

    @property
    def most_ctx(self) -> int | None:
        """Tokens of a sequence that the weights know positions for, where these were learned one by
        one; None where any number goes."""
        return next((w.shape[0] for w in self.weights() if w.name == "position_embd.weight"), None)

    def cache(self, i: int) -> CacheLayer | StateLayer | None:
        """What layer i keeps of every token, or of every sequence; None for nothing."""
        raise NotImplementedError

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Record the forward pass; returns the logits, float32 [n_out, n_vocab]."""
        raise NotImplementedError

    @classmethod
    def tiny(cls) -> HParams:
        """A configuration small enough for tests of every architecture."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        if cls.name:
            _REGISTRY[cls.name] = cls


_REGISTRY: dict[str, type[Architecture]] = {}


def architectures() -> dict[str, type[Architecture]]:
    """Every architecture by its GGUF name."""
    for name in _module_names():
        import_module(f"gguflow.models.{name}")
    return dict(_REGISTRY)


def _module_names() -> list[str]:
    package = import_module("gguflow.models")
    return [m.name for m in modules_in(package.__path__) if not m.ispkg]


def architecture(name: str) -> type[Architecture]:
    """The class for `general.architecture = name`. Raises ModelError listing what is supported."""
    module = name.replace("-", "_")
    if name not in _REGISTRY and module in _module_names():
        # The usual case: the file is called as the architecture, and the others need no import.
        import_module(f"gguflow.models.{module}")
    found = _REGISTRY if name in _REGISTRY else architectures()
    if name not in found:
        raise ModelError(
            f"general.architecture: {show(name)} is not supported; have {', '.join(sorted(found))}"
        )
    return found[name]
