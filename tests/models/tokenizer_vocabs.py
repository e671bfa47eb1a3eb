"""Small vocabularies, as the metadata a GGUF file would hold."""

from __future__ import annotations

from typing import Any

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def spm_metadata(*extra: tuple[str, float, int], **keys: Any) -> dict[str, Any]:
    """An SPM vocabulary: <unk> <s> </s>, 256 bytes (ids 3 to 258), words from 259, then `extra`.

    keys: more `tokenizer.ggml.*` keys.
    """
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    words = ["▁a", "ab", "▁ab", "bc", "abc", "▁", "a", "b", "c", "é", "▁▁"]
    pieces += [(word, -float(rank), NORMAL) for rank, word in enumerate(words)]
    pieces += extra
    texts, scores, types = zip(*pieces, strict=True)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
        "tokenizer.ggml.token_type": np.array(types, dtype=np.int32),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def byte_alphabet() -> list[str]:
    """GPT-2's characters for the bytes 0 to 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(hidden)) for byte in range(256)]


def bpe_metadata(
    merges: list[str] | None = None, special: tuple[tuple[str, int], ...] = (), **keys: Any
) -> dict[str, Any]:
    """A BPE vocabulary: 256 bytes (ids 0 to 255), the results of the merges, then `special`."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"] if merges is None else merges
    tokens = [*byte_alphabet(), *(merge.replace(" ", "") for merge in merges)]
    types = [NORMAL] * len(tokens) + [kind for _, kind in special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*tokens, *(text for text, _ in special)],
        "tokenizer.ggml.token_type": np.array(types, dtype=np.int32),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }
