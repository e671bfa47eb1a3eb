"""route, route_weights: which experts a token goes to, and what share each of them has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense, sigmoid

SCORES = ("softmax", "sigmoid", "chosen")
_SCORE = Param(
    "score", "i", None, SCORES,
    "of a logit: softmax over all experts, sigmoid, or softmax over the chosen",
)  # fmt: skip


def expert_scores(logits: np.ndarray, score: str) -> np.ndarray:
    """What experts are chosen by, float64 [m, E]."""
    x = logits.astype(np.float64)
    if score == "sigmoid":
        return sigmoid(logits)
    if score == "chosen":
        return x
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


class Route(OpSpec):
    name = "route"
    doc = (
        "The n_used experts of each row whose score plus bias is the largest, in falling order, "
        "the lower index first on ties. With n_group > 1 only those of the n_group_used groups of "
        "neighbouring experts with the largest score: the sum of its two best with a bias "
        "(DeepSeek-V3), its best without (DeepSeek-V2)."
    )
    operands = ("logits f32 [m, E]", "bias? f32 [E]")
    params = (
        Param("n_used", "i"),
        _SCORE,
        Param("n_group", "i", 1),
        Param("n_group_used", "i", 1),
    )
    rows_of = 0
    across = (1,)
    cost = "8 an expert"
    tolerance = 0.0

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        logits, bias = (*srcs, None)[:2]
        if logits.dtype is not F32 or len(logits.shape) != 2 or not rows_dense(logits):
            raise self.fail("logits must be f32 [m, E] with dense rows", *srcs)
        n = logits.shape[1]
        if bias is not None and (bias.dtype is not F32 or bias.shape != (n,)
                                 or not rows_dense(bias)):  # fmt: skip
            raise self.fail("bias must be f32 [E]", *srcs)
        groups, used = params["n_group"], params["n_group_used"]
        if groups < 1 or n % groups or not 1 <= used <= groups:
            raise self.fail(f"{used} of {groups} groups of {n} experts", *srcs)
        if not 1 <= params["n_used"] <= n // groups * used:
            raise self.fail(f"n_used={params['n_used']} of {n} experts", *srcs)
        return I32, (logits.shape[0], params["n_used"])

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        logits, bias = (*srcs, None)[:2]
        # In float32, as kernels have it, so that equal scores are equal in both.
        s = expert_scores(logits, params["score"]).astype(np.float32)
        if bias is not None:
            s = s + bias
        groups = params["n_group"]
        if groups > 1:
            by_group = np.sort(s.reshape(len(s), groups, s.shape[1] // groups), axis=-1)
            best = by_group[..., -1]
            if bias is not None and by_group.shape[-1] > 1:
                best = best + by_group[..., -2]
            kept = np.argsort(-best, axis=-1, kind="stable")[:, : params["n_group_used"]]
            open_ = np.zeros((len(s), groups), bool)
            np.put_along_axis(open_, kept, True, axis=-1)
            s = np.where(np.repeat(open_, s.shape[1] // groups, axis=-1), s, -np.inf)
        order = np.argsort(-s, axis=-1, kind="stable")
        return order[:, : params["n_used"]].astype(np.int32)

    def flops(self, out: Tensor) -> int:
        return 8 * out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        for m, n, k in ((1, 4, 2), (3, 8, 8), (31, 64, 6), (2, 512, 10), (5, 1, 1)):
            for score in SCORES:
                yield Case((Operand((m, n)),), {"n_used": k, "score": score},
                           f"{m} of {k} of {n}, {score}")  # fmt: skip
        for score in ("softmax", "sigmoid"):
            srcs = Operand((7, 32)), Operand((32,), role="weight")
            yield Case(srcs, {"n_used": 4, "score": score}, f"bias, {score}")
            groups = {"n_used": 4, "score": score, "n_group": 8, "n_group_used": 3}
            yield Case(srcs, groups, f"bias and groups, {score}")
            yield Case(srcs[:1], groups, f"groups, {score}")
        yield Case((Operand((3, 8), data=1.0),), {"n_used": 3, "score": "softmax"}, "ties")
        yield Case((Operand((5, 31), pad=(2, 5)),), {"n_used": 3, "score": "softmax"}, "view")


class RouteWeights(OpSpec):
    name = "route_weights"
    doc = (
        "The scores of the experts that each row's ids name, times scale; with norm divided by "
        "their sum first. 0 for an id outside [0, E)."
    )
    operands = ("logits f32 [m, E]", "ids i32 [m, u]")
    params = (
        _SCORE,
        Param("norm", "i", 0, doc="whether they are made to sum to one"),
        Param("scale", "f", 1.0),
    )
    rows_of = 0
    cost = "5 an expert"

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        logits, ids = srcs
        if logits.dtype is not F32 or len(logits.shape) != 2 or not rows_dense(logits):
            raise self.fail("logits must be f32 [m, E] with dense rows", *srcs)
        if ids.dtype is not I32 or len(ids.shape) != 2 or ids.shape[0] != logits.shape[0]:
            raise self.fail("ids must be i32 [m, u], a row for each of logits", *srcs)
        if not rows_dense(ids) or logits.shape[1] < 1:
            raise self.fail("rows must be dense, and there must be experts", *srcs)
        return F32, ids.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        logits, ids = srcs
        known = (ids >= 0) & (ids < logits.shape[1])
        scores = expert_scores(logits, params["score"])
        w = np.take_along_axis(scores, np.where(known, ids, 0).astype(np.int64), axis=-1)
        if params["score"] == "chosen":
            top = np.max(w, axis=-1, keepdims=True, where=known, initial=-np.inf)
            w = np.exp(w - np.where(np.isneginf(top), 0, top))
        w = np.where(known, w, 0)
        if params["norm"] or params["score"] == "chosen":
            total = w.sum(axis=-1, keepdims=True)
            w = w / np.where(total == 0, 1, total)
        return (w * params["scale"]).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 5 * out.live_srcs()[0].size

    def cases(self) -> Iterator[Case]:
        def draw(n: int) -> Any:
            return lambda rng, shape: np.array([rng.permutation(n)[: shape[1]]
                                                for _ in range(shape[0])])  # fmt: skip

        def case(
            m: int,
            n: int,
            k: int,
            ids: Any = None,
            data: Any = None,
            pad: tuple[tuple[int, ...], ...] = ((), ()),
            note: str = "",
            **params: Any,
        ) -> Case:
            ids = draw(n) if ids is None else ids
            srcs = Operand((m, n), data=data, pad=pad[0]), Operand((m, k), "i32", ids, pad=pad[1])
            note = note or f"{m} of {k} of {n}, {params}"
            return Case(srcs, {"score": "softmax", **params}, note)

        for m, n, k in ((1, 4, 2), (31, 64, 6), (2, 512, 10), (3, 1, 1)):
            for score in SCORES:
                yield case(m, n, k, score=score)
                yield case(m, n, k, score=score, norm=1, scale=2.5)
        yield case(2, 3, 2, [[-1, 1], [3, -1]], norm=1, note="outside")
        yield case(4, 31, 3, data=lambda rng, s: rng.standard_normal(s) * 200, note="large")
        yield case(4, 31, 3, pad=((1, 5), (1, 2)), score="sigmoid", norm=1, note="views")
