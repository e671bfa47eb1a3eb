"""Bounds and special values of settings, importable without the engine: the command line checks its
arguments against them before numpy is loaded."""

from typing import Literal

MAX_TOKENS = (1 << 31) - 1  # positions are 32-bit
MAX_THREADS = 512
MAX_SEQS = 4096  # sequences at once
COMPACT_MODES = ("auto", "on", "off")
EQUAL_MODES = ("few", "many")  # rows at once that equal bits are to be fast with
EqualBits = bool | Literal["few", "many"]
SPARSE_MODES = ("auto", "predict", "exact", "off")
AUTO_LAYERS = -1  # as many layers on the device as fit
ALL_LAYERS = -2
SPLIT_MODES = ("none", "layer", "tensor")
MAX_DEVICES = 16
