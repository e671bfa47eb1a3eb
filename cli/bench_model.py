"""The models that `gguflow bench` measures: placed, loaded, and described."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from gguflow import __version__
from gguflow.engine.plan_key import PAGE

from .load import gpu, load_weights, prepare
from .options import placement, sparse

if TYPE_CHECKING:
    from gguflow.engine.load import ModelSource
    from gguflow.engine.model import Model


class Settings(Protocol):
    """What tests of one loaded model may differ in. n_ctx: tokens of a sequence."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_seqs(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_ubatch(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def type_k(self) -> str: ...
    @property
    def type_v(self) -> str: ...
    @property
    def n_gpu_layers(self) -> int: ...


def settings(t: Settings) -> dict[str, Any]:
    """The fields of `Options` in which tests of one loaded model differ."""
    from gguflow.engine.graph import dtype_by_name

    return {
        "n_ctx": t.n_ctx,
        "n_seqs": t.n_seqs,
        "n_batch": t.n_batch,
        "n_ubatch": t.n_ubatch,
        "n_threads": t.n_threads,
        "k_type": dtype_by_name(t.type_k),
        "v_type": dtype_by_name(t.type_v),
    }


def cache_rows(n_ctx: int, n_seqs: int) -> int:
    """Rows of whole pages for so many sequences."""
    return n_seqs * -(-n_ctx // PAGE) * PAGE


def load(source: ModelSource, tests: Sequence[Settings], args: Namespace) -> Model:
    """A model for tests that agree in -ngl, placed so that the largest of them fits."""
    from gguflow.engine.options import Options

    largest = settings(max(tests, key=lambda t: t.n_ctx * t.n_seqs))
    for name in ("n_ubatch", "n_seqs", "n_ctx"):
        largest[name] = max(getattr(t, name) for t in tests)
    # Of the cache as much as the largest test has, though no test may be as long and as wide.
    largest["n_cache"] = max(cache_rows(t.n_ctx, t.n_seqs) for t in tests)
    options = Options(
        **largest,
        fuse=not args.no_fuse,
        n_gpu_layers=tests[0].n_gpu_layers,
        **placement(args),
        **sparse(args),
    )
    model = prepare(source, options, args)
    load_weights(model, quiet=True)
    return model


def facts(model: Model, source: ModelSource, args: Namespace) -> dict[str, Any]:
    """llama-bench's fields that do not change from test to test. source: the model as it was given,
    without the parts that a split adds."""
    from gguflow.engine.profile.machine import machine_name

    weights, device = source.weights.values(), gpu(model)
    overrides = ";".join(f"{name}={where}" for name, where in placement(args)["overrides"])
    return {
        "build_commit": f"gguflow {__version__}",
        "build_number": 0,
        "cpu_info": machine_name(),
        "gpu_info": device.processor if device else "",
        "backends": (device or next(iter(model.backends.values()))).id.kind.upper(),
        "model_filename": source.path,
        "model_type": model_type(source),
        "model_size": sum(w.nbytes for w in weights),
        "model_n_params": sum(prod(w.shape) for w in weights),
        "tensor_buft_overrides": overrides or "none",
    }


def model_type(source: ModelSource) -> str:
    """`llama 1.1B Q4_0`: architecture, size, and the type most of the weights have."""
    if not source.path.endswith(".gguf"):
        return source.path.replace(":", " ")
    n = sum(prod(w.shape) for w in source.weights.values())
    by_type: dict[str, int] = {}
    for w in source.weights.values():
        name = w.convert or w.dtype.name
        by_type[name] = by_type.get(name, 0) + prod(w.shape)
    unit, size = next(u for u in (("B", 1e9), ("M", 1e6), ("K", 1e3), ("", 1)) if n >= u[1])
    main = max(by_type, key=lambda name: by_type[name])
    return f"{source.arch.name} {n / size:.1f}{unit} {main.upper()}"
