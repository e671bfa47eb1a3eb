"""What a file says of sparse inference, for `gguflow inspect`: predictors, thresholds, splits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguflow.engine.gguf import GgufFile

_PREDICTOR = re.compile(r"blk\.(\d{1,9})\.(fc1|fc2)\.weight")


def sparse_facts(f: GgufFile) -> dict[str, Any] | None:
    """Of a split: neurons on the device by layer. Of a model or a predictor: its rank by layer,
    bytes and threshold. None for a file without either."""
    from gguflow.engine.variants.relu.predictor import read_threshold
    from gguflow.engine.variants.relu.split import is_split, open_split

    if is_split(f):
        stored = open_split(f.path)
        return {
            "kind": "split",
            "n_ff": stored.split.n_ff,
            "n_gpu": list(stored.split.n_gpu),
            "vram_bytes": stored.vram_bytes,
            "model_hash": stored.model_hash,
        }
    name = f.keys.text("general.architecture", None)
    found = {m: t for n, t in f.tensors.items() if (m := _PREDICTOR.fullmatch(n))}
    if not found and name not in ("relullama", "relufalcon"):
        return None
    ranks = {int(m[1]): t.shape[0] for m, t in found.items() if m[2] == "fc1"}
    threshold = read_threshold(f.keys, str(name))
    down = {part: sum(f".{part}.weight" in n for n in f.tensors)
            for part in ("ffn_down", "ffn_down_t")}  # fmt: skip
    return {
        "kind": "predictor" if f.keys.text("general.type", None) == "predictor" else "model",
        "predictor_rank": [ranks[i] for i in sorted(ranks)],
        "predictor_layers": sorted(ranks),
        "predictor_types": sorted({t.dtype.name for t in found.values()}),
        "predictor_bytes": sum(t.nbytes for t in found.values()),
        "threshold": list(threshold) if isinstance(threshold, tuple) else threshold,
        **{part: n for part, n in down.items() if n},
    }


def sparse_text(f: GgufFile, facts: dict[str, Any]) -> str:
    """The same in words."""
    if facts["kind"] == "split":
        from gguflow.engine.variants.relu.split import open_split

        from .sparse.show import show_split

        return show_split(open_split(f.path), None)
    from gguflow.engine.compile import human_bytes

    layers, threshold = facts["predictor_layers"], facts["threshold"]
    if not layers:
        return "sparse: no predictors, so that --sparse auto takes exact or off"
    ranks = facts["predictor_rank"]
    rank = f"{min(ranks)}" if min(ranks) == max(ranks) else f"{min(ranks)} to {max(ranks)}"
    said = threshold if not isinstance(threshold, list) else (
        f"{min(threshold):.4g} to {max(threshold):.4g} by layer"
    )  # fmt: skip
    return (
        f"sparse: predictors of rank {rank} in {len(layers)} layers "
        f"({', '.join(facts['predictor_types'])}, {human_bytes(facts['predictor_bytes'])}), "
        f"threshold {said}"
    )
