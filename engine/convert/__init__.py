"""Checkpoints of Hugging Face transformers to GGUF: one file of each idea.

`checkpoint` reads a directory (config, safetensors), `families` say what a configuration's keys and
tensors become, `vocabulary` reads tokenizers, `write` puts a file together tensor by tensor.
"""

from .checkpoint import ConvertError
from .write import convert

__all__ = ["ConvertError", "convert"]
