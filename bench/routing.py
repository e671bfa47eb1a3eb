"""What quantizing mixtures of experts costs, and how much of it are other choices of experts.

    mkdir tiny && tar -xf tests/data/architectures.tar.xz -C tiny
    python bench/routing.py tiny/llama.gguf tiny/qwen3moe.gguf --types Q8_0,Q4_K_M

Each model runs the same tokens as it is and quantized in memory: those of the .npz beside it, else
arbitrary ones. A row has the NMSE of the logits; the share of (token, layer) pairs that choose
other experts; and the NMSE when every token uses all experts, so that there is nothing to choose
and only rounding is left.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np

from gguflow.engine.graph import F32, Graph
from gguflow.engine.load import ModelSource, open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.requantize import native_converter, requantize
from gguflow.engine.variants.experts.run import expert_layers
from gguflow.models.mixes import find_mix


class Chosen:
    """A rewrite that makes the ids of the chosen experts outputs, before the others."""

    def rewrite(self, g: Graph) -> None:
        g.outputs[:0] = [layer.ids for layer in expert_layers(g)]


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def tokens(path: Path, n_vocab: int) -> list[int]:
    beside = path.with_suffix(".npz")
    if beside.exists():
        with np.load(beside) as z:
            return [int(i) for i in z["ids"]]
    return np.random.default_rng(0).integers(0, n_vocab, 40).tolist()


def run(source: ModelSource, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
    """Logits, and the chosen experts in ascending order, int32 [n_layer, n, n_used]."""
    model = Model(source, Options(k_type=F32, v_type=F32))
    model.load_weights()
    logits = model.logits(ids)
    if source.arch.hp.experts is None:
        return logits, None
    pieces = [
        np.sort([np.array(ids) for ids in out], axis=-1)
        for out in model.with_rewrite(Chosen()).outputs(ids)
    ]
    return logits, np.concatenate(pieces, axis=1)


def with_all_experts(source: ModelSource) -> ModelSource | None:
    """The model whose tokens go through every expert; None for a dense one."""
    e = source.arch.hp.experts
    if e is None:
        return None
    arch = copy(source.arch)
    every = replace(e, n_used=e.n, n_group=1, n_group_used=1)
    arch.hp = replace(arch.hp, experts=every)
    return replace(source, arch=arch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--types", default="Q8_0,Q4_K_M")
    args = parser.parse_args()
    by = native_converter()
    print("| model | type | NMSE | other choices | NMSE, all experts |\n|---|---|---|---|---|")
    for path in args.models:
        source = open_model(path)
        ids, every = tokens(path, source.arch.hp.n_vocab), with_all_experts(source)
        plain, chosen = run(source, ids)
        of_every = run(every, ids)[0] if every is not None else None
        for name in args.types.split(","):
            mix = find_mix(name)
            found, choices = run(requantize(source, mix, by), ids)
            row = [path.stem, name, f"{nmse(found, plain):.1e}", "", ""]
            if every is not None and choices is not None and of_every is not None:
                row[3] = f"{100 * (choices != chosen).any(axis=-1).mean():.0f} %"
                row[4] = f"{nmse(run(requantize(every, mix, by), ids)[0], of_every):.1e}"
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
