"""Classes of rows: on a device a row of one class goes through the same products in every plan."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tiny_model import write_tiny

from gguflow.engine.compile.fuse import fuse_graph
from gguflow.engine.compile.join import bring_together, join_products
from gguflow.engine.compile.prune import prune
from gguflow.engine.compile.row_classes import mark_classes
from gguflow.engine.graph import Graph, Role, Tensor
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.planning import buckets, record
from gguflow.kernels.cuda.launch import supports
from gguflow.models.base import architectures

KINDS = ("single", "chunk")


def graph_of(model: Model, key: PlanKey) -> Graph:
    """As a GPU computes it."""
    g = record(model.setup, key)
    g.nodes = prune(g.nodes, g.outputs)
    on_gpu = partial(supports, equal_bits=True)
    g = bring_together(join_products(fuse_graph(g, on_gpu), on_gpu))
    mark_classes(g)
    return g


def model_of(folder: Path, arch: str, **options: bool) -> Model:
    sizes = {"n_embd": 256, "n_ff": 512, "head_dim": 64, "head_dim_v": 64, "rope_dims": 64}
    path = write_tiny(folder / "m.gguf", arch, **(sizes if arch == "llama" else {}))
    return Model(open_model(path), Options(n_ctx=64, n_seqs=4, n_threads=1, **options))


def products(g: Graph, kind: str) -> list[tuple[str | None, tuple[str, ...], str]]:
    """The ops over matrices that a row of this kind goes through: op, weights, class there."""

    def weights(n: Tensor) -> tuple[str, ...]:
        owners = (s.owner for s in n.live_srcs())
        return tuple(w.name for w in owners if w.role is Role.WEIGHT and len(w.shape) > 1)

    found = []
    for n in g.nodes:
        if not weights(n):
            continue
        picked = n.shape[0] != g.leaves["tokens"].shape[0]
        assert n.n_single in (None, n.shape[0] if picked else g.n_single)
        # Without a class a row is taken for a single one.
        found.append((n.op, weights(n), "single" if picked or n.n_single is None else kind))
    return found


def keys_of(model: Model) -> dict[str, list[PlanKey]]:
    """Plans that have rows of each kind, and do not give logits of all rows of prompts."""
    sizes = buckets(model.options)
    assert sizes.equal
    runs = [(1, 0), (4, 0), (9, 0), (0, 1), (0, 3), (0, 40), (1, 1), (3, 20), (2, 16)]
    found: dict[str, list[PlanKey]] = {kind: [] for kind in KINDS}
    for n_single, n_chunk in runs:
        for n_out, sample in ((0, False), (1, False), (1, True)):
            n_seqs = 1 if n_single in (0, 9) else min(n_single, 4) + (n_chunk > 0)
            key = sizes.key(n_single, n_chunk, n_seqs, n_out, False, sample)
            found["single"] += [key] * (n_single > 0)
            found["chunk"] += [key] * (n_chunk > 0)
    return found


@pytest.mark.parametrize("arch", sorted(architectures()))
def test_a_row_goes_through_the_same_products_in_every_plan(tmp_path: Path, arch: str) -> None:
    model = model_of(tmp_path, arch, equal_bits=True)
    for kind, keys in keys_of(model).items():
        first, *others = [products(graph_of(model, key), kind) for key in keys]
        assert first
        for key, other in zip(keys[1:], others, strict=True):
            assert other == first, key


def test_without_it_they_differ(tmp_path: Path) -> None:
    """Or the test before would be none."""
    model = model_of(tmp_path, "llama")
    keys = PlanKey(1, 0, 1, 1), PlanKey(1, 16, 2, 2)
    alone, beside = (products(graph_of(model, key), "single") for key in keys)
    assert alone != beside


def test_rows_to_output_are_fewer_than_rows_of_prompts() -> None:
    for n_ubatch in (1, 3, 64):
        sizes = buckets(Options(n_seqs=16, n_ubatch=n_ubatch, equal_bits=True))
        for n_single, n_chunk in ((0, 1), (0, n_ubatch), (5, 1), (2, n_ubatch)):
            key = sizes.key(n_single, n_chunk, n_single + n_chunk, n_single + 1, False, True)
            assert key.picks and key.n_chunk >= n_chunk and key.n_single >= n_single
            assert key.n_tokens <= sizes.largest.n_tokens
