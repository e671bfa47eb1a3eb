"""Quantized element types: one file each, found by being here.

    raw = encode("q4_K", x)              # float32 [..., n] -> uint8 [..., row bytes]
    y = decode("q4_K", raw, x.shape)     # and back

Importing this package registers every type with `engine.graph`. Types of the `gguf` package that
have no file here are read by `dequantize_any`.
"""

from __future__ import annotations

from importlib import import_module

from gguflow.engine.found import modules_in

from .base import Codec, all_codecs, codec, decode, encode

for _module in modules_in(__path__):
    import_module(f"{__name__}.{_module.name}")

from .other import dequantize_any  # noqa: E402

__all__ = ["Codec", "all_codecs", "codec", "decode", "dequantize_any", "encode"]
