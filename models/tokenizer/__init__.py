"""Tokenizers built from GGUF metadata: SPM through sentencepiece, BPE through tokenizers."""

from .stream import TextStream
from .tokenizer import Tokenizer
from .vocab import TokenType

__all__ = ["TextStream", "TokenType", "Tokenizer"]
