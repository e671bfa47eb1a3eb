"""Tokenizers built from GGUF metadata: by merges in Python and the libraries
sentencepiece and tokenizers."""

from .stream import TextStream
from .tokenizer import Tokenizer
from .vocab import TokenType

__all__ = ["TextStream", "TokenType", "Tokenizer"]
