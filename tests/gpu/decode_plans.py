"""The launches of whole decode steps of named shapes, without a GPU or weights."""

from __future__ import annotations

from functools import cache

from kernel_list import launches_of

from gguflow.engine.compile import PlacementRules, PlanOptions, compile_graph
from gguflow.engine.graph import F16, DType, Graph
from gguflow.engine.loader import random_model
from gguflow.kernels.cuda.gemm import Gemm
from gguflow.kernels.cuda.launch import Launch, supports
from gguflow.models.base import Batch

Ops = list[list[Launch | Gemm]]


class _Anywhere:
    """As much of a backend as compiling a plan needs."""

    name, space = "cuda", "cuda:0"
    supports = staticmethod(supports)


@cache
def decode_step(shape: str, cache_type: DType = F16, n_tokens: int = 1) -> Ops:
    """Launches by op of one step; operands lie at made-up addresses."""
    source, g = random_model(shape), Graph()
    leaves = {w.name: g.weight(w.name, w.dtype, w.shape) for w in source.weights.values()}
    batch = Batch(n_tokens, 512, cache_type, cache_type)
    g.output(source.arch.build(g, leaves, batch))
    plan = compile_graph(g, PlanOptions(PlacementRules((_Anywhere(),))))
    return [launches_of(n) for n in plan.nodes]
