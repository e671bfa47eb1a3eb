"""GGUF files: a reader that trusts nothing, a writer that streams.

with GgufFile.open("model.gguf") as f:
    f.metadata["llama.block_count"], f.tensors["output.weight"].shape, f.data("output.weight")

write_gguf("copy.gguf", f.typed_metadata(), {n: (t.dtype, t.shape, f.data(n)) for n, t in ...})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import GgufError
from .reader import GgufFile
from .strings import StringArray
from .tensors import TensorInfo, UnsupportedType
from .values import Typed

if TYPE_CHECKING:
    from .writer import write_gguf

__all__ = [
    "GgufError", "GgufFile", "StringArray", "TensorInfo", "Typed", "UnsupportedType", "write_gguf",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Only the writer needs the gguf package, whose import takes as long as opening a model.
    if name == "write_gguf":
        from .writer import write_gguf

        return write_gguf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
