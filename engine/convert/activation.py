"""The activation of feed-forward layers: what a configuration says, and whether it is what the
architecture computes, for GGUF has no key for it."""

from __future__ import annotations

from gguflow.models.base import architecture
from gguflow.models.decoder import Decoder

from .checkpoint import Config, ConvertError

_KEYS = ("hidden_activation", "hidden_act", "activation_function", "activation")
# By the architecture's: transformers' names. The fast forms of GELU are within 1e-3 of it.
_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")
_SAME = {
    "silu": ("silu", "swish"), "gelu": _GELUS, "gelu_erf": _GELUS, "relu": ("relu", "fatrelu"),
}  # fmt: skip


def activation(c: Config) -> str | None:
    """As the configuration calls it, None where it does not say."""
    found = c.get(*_KEYS)
    return found if isinstance(found, str) else None


def check_activation(c: Config, arch: str) -> None:
    """Raises ConvertError for another activation than that of the architecture."""
    cls, named = architecture(arch), activation(c)
    known = _SAME.get(cls.act) if issubclass(cls, Decoder) else None
    if known is not None and named is not None and named.lower() not in known:
        key = next(k for k in _KEYS if c.get(k) is not None)
        raise ConvertError(
            f"{c.path}: {key} {named!r} is not supported: {arch} has {' or '.join(known)}"
        )
