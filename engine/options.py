"""How a model is run: every setting that a plan or a session depends on."""

from __future__ import annotations

from dataclasses import dataclass

from gguflow.engine.graph import F16, DType
from gguflow.engine.limits import MAX_THREADS, MAX_TOKENS


class OptionError(ValueError):
    """A field of `Options` out of its range: names it."""


@dataclass(frozen=True)
class Options:
    """How a model is run; the defaults are llama.cpp's.

    n_ctx: rows of the KV cache, 0 for what the model was trained with.
    n_batch, n_ubatch: tokens a prompt is cut into; results do not depend on them.
    n_threads, n_threads_batch: for single tokens and for prompts; 0 for all processors.
    n_gpu_layers: layers on the device, the output head counting as one; AUTO_LAYERS or
        ALL_LAYERS of `engine.limits` for what fits or everything. device: which one, by number.
    overrides: (regular expression, backend) pairs that place tensors, before n_gpu_layers does.
    """

    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_threads_batch: int = 0
    k_type: DType = F16
    v_type: DType = F16
    fuse: bool = True
    backends: tuple[str, ...] = ("cpu", "numpy")
    isa: str | None = None
    n_gpu_layers: int = 0
    device: int = 0
    overrides: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, least, most in (
            ("n_ctx", 0, MAX_TOKENS),
            ("n_batch", 1, MAX_TOKENS),
            ("n_ubatch", 1, MAX_TOKENS),
            ("n_threads", 0, MAX_THREADS),
            ("n_threads_batch", 0, MAX_THREADS),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise OptionError(f"{name} {value!r}: expected a whole number {least} to {most}")
