"""What architectures share: hyperparameters read from GGUF keys, the weight list, the registry.

An architecture is one file in this directory that subclasses `Architecture`; it is found by being
there.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from gguflow.engine.graph import Graph, Tensor

from .batch import Batch, CacheLayer


class ModelError(ValueError):
    """A file that is sound GGUF but not a model this project can run: names key or tensor."""


@dataclass(frozen=True)
class HParams:
    """Hyperparameters of a decoder-only transformer, under the field's usual names."""

    arch: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    head_dim_v: int
    norm_eps: float
    rope_dims: int
    rope_base: float
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    sliding_window: int = 0  # 0: every token sees all before it

    @property
    def n_embd_kv(self) -> int:
        return self.n_head_kv * self.head_dim


@dataclass(frozen=True)
class WeightSpec:
    """A tensor the architecture expects: name, shape in numpy order, whether it may be absent.

    shape: -1 stands for a dimension that the file decides. transposed: the name of a tensor that
    holds the same matrix the other way round and may stand in for this one.
    """

    name: str
    shape: tuple[int, ...]
    optional: bool = False
    transposed: str = ""

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape is what is expected."""
        return len(shape) == len(self.shape) and all(
            n in (-1, m) for n, m in zip(self.shape, shape, strict=True)
        )


class Architecture:
    """Base of all architectures. Subclassing with a `name` registers the class."""

    name: ClassVar[str] = ""
    rope_mode: ClassVar[str] = "norm"  # rotary layout: "norm" adjacent pairs, "neox" half split

    def __init__(self, hp: HParams) -> None:
        self.hp = hp

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], n_vocab: int) -> Architecture:
        """The architecture as a file's keys describe it. n_vocab: rows of the embedding table."""
        return cls(read_hparams(metadata, n_vocab))

    def weights(self) -> Iterator[WeightSpec]:
        """Every tensor the architecture reads."""
        raise NotImplementedError

    def check(self, tensors: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ModelError for tensors (name -> shape) that each fit, but not together."""

    def cache(self, i: int) -> CacheLayer | None:
        """What layer i keeps of every token; None for nothing."""
        hp = self.hp
        return CacheLayer(hp.n_embd_kv, hp.n_head_kv * hp.head_dim_v, hp.sliding_window)

    def build(self, g: Graph, w: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Record the forward pass; returns the logits, float32 [n_out, n_vocab]."""
        raise NotImplementedError

    @classmethod
    def tiny(cls) -> HParams:
        """A configuration small enough for tests of every architecture."""
        return HParams(
            cls.name, n_vocab=96, n_ctx_train=64, n_embd=64, n_layer=2, n_ff=96, n_head=4,
            n_head_kv=2, head_dim=16, head_dim_v=16, norm_eps=1e-5, rope_dims=16, rope_base=1e4,
        )  # fmt: skip

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
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg]


def architecture(name: str) -> type[Architecture]:
    """The class for `general.architecture = name`. Raises ModelError listing what is supported."""
    if name not in _REGISTRY and name in _module_names():
        # The usual case: the file is called as the architecture, and the others need no import.
        import_module(f"gguflow.models.{name}")
    found = _REGISTRY if name in _REGISTRY else architectures()
    if name not in found:
        raise ModelError(
            f"general.architecture: {name!r} is not supported; have {', '.join(sorted(found))}"
        )
    return found[name]


# -- reading hyperparameters ---------------------------------------------------------------------


class Keys:
    """Typed access to `<arch>.*` keys, with errors that name the key."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.metadata = metadata
        self.arch = arch

    def _number(self, key: str, default: float | None, kinds: tuple[type, ...]) -> Any:
        full = f"{self.arch}.{key}"
        value = self.metadata.get(full)
        if value is None:
            if default is None:
                raise ModelError(f"{full}: missing, and the {self.arch} architecture needs it")
            return default
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()  # per-layer arrays that hold one number
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ModelError(f"{full}: expected {kinds[0].__name__}, found {value!r:.60}")
        return value

    def integer(
        self, key: str, default: int | None = None, least: int = 0, most: int = 1 << 31
    ) -> int:
        value = int(self._number(key, default, (int,)))
        if not least <= value <= most:
            raise ModelError(f"{self.arch}.{key}: {value} is out of range {least}..{most}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = float(self._number(key, default, (float, int)))
        if not math.isfinite(value):
            raise ModelError(f"{self.arch}.{key}: {value} is not a finite number")
        return value

    def text(self, key: str, default: str) -> str:
        value = self.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, str):
            raise ModelError(f"{self.arch}.{key}: expected text, found {value!r:.60}")
        return value


def read_hparams(metadata: Mapping[str, Any], n_vocab: int) -> HParams:
    """Hyperparameters from GGUF metadata. n_vocab: rows of the embedding table.

    Raises ModelError naming the key. Key names: the GGUF specification, section "LLM".
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise ModelError("general.architecture: missing or not text")
    k = Keys(metadata, arch)
    n_embd = k.integer("embedding_length", least=1, most=1 << 20)
    n_head = k.integer("attention.head_count", least=1, most=1 << 16)
    n_head_kv = k.integer("attention.head_count_kv", n_head, least=1, most=1 << 16)
    if n_head % n_head_kv:
        raise ModelError(
            f"{arch}.attention.head_count_kv: {n_head_kv} KV heads do not divide {n_head} heads"
        )
    head_dim = k.integer("attention.key_length", n_embd // n_head, least=2, most=1 << 16)
    hp = HParams(
        arch=arch,
        n_vocab=n_vocab,
        n_ctx_train=k.integer("context_length", least=1, most=1 << 28),
        n_embd=n_embd,
        n_layer=k.integer("block_count", least=1, most=1 << 12),
        n_ff=k.integer("feed_forward_length", least=1, most=1 << 22),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        head_dim_v=k.integer("attention.value_length", head_dim, least=1, most=1 << 16),
        norm_eps=k.real("attention.layer_norm_rms_epsilon"),
        rope_dims=k.integer("rope.dimension_count", head_dim, least=2, most=1 << 16),
        rope_base=k.real("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(k),
        sliding_window=k.integer("attention.sliding_window", 0),
    )
    if hp.rope_dims > head_dim or hp.rope_dims % 2:
        raise ModelError(
            f"{arch}.rope.dimension_count: {hp.rope_dims} of {head_dim} values a head; expected "
            "an even number up to it"
        )
    if hp.norm_eps < 0:
        raise ModelError(f"{arch}.attention.layer_norm_rms_epsilon: {hp.norm_eps} is negative")
    if hp.rope_base <= 0:
        raise ModelError(f"{arch}.rope.freq_base: {hp.rope_base} is not positive")
    return hp


def _rope_scaling(k: Keys) -> dict[str, Any]:
    """Parameters of the rope op for linear and YaRN scaling; a type left out means linear."""
    kind = k.text("rope.scaling.type", "linear")
    if kind not in ("none", "", "linear", "yarn", "llama3"):
        raise ModelError(f"{k.arch}.rope.scaling.type: {kind!r} is not supported")
    factor = k.real("rope.scaling.factor", k.real("rope.scale_linear", 0.0)) or 1.0
    if factor < 0:
        raise ModelError(f"{k.arch}.rope.scaling.factor: {factor} is negative")
    attn_factor = k.real("rope.scaling.attn_factor", 1.0)
    scaling: dict[str, Any] = {} if attn_factor == 1.0 else {"attn_factor": attn_factor}
    if kind not in ("linear", "yarn") or factor == 1.0:
        return scaling  # llama3: the file carries the frequency factors as a tensor
    scaling["freq_scale"] = 1.0 / factor
    if kind == "yarn":
        scaling["ext_factor"] = 1.0
        scaling["beta_fast"] = k.real("rope.scaling.yarn_beta_fast", 32.0)
        scaling["beta_slow"] = k.real("rope.scaling.yarn_beta_slow", 1.0)
        scaling["n_ctx_orig"] = k.integer(
            "rope.scaling.original_context_length", k.integer("context_length")
        )
    return scaling
