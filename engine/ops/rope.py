"""rope: rotary position embedding (Su et al. 2021); YaRN, linear and frequency-factor scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..graph import F32, I32, Case, DType, Operand, OpSpec, Param, Shape, Tensor
from ._common import rows_dense


def yarn_range(
    n_dims: int,
    n_ctx_orig: int,
    freq_base: float,
    beta_fast: float,
    beta_slow: float,
    whole: bool = True,
) -> tuple[float, float]:
    """The pairs between which YaRN blends: (low, high), in units of pairs.

    The pair whose wavelength makes beta turns over the original context is
    n_dims ln(n_ctx_orig / (2 pi beta)) / (2 ln freq_base) (Peng et al. 2023, section 3.2).
    """

    def pair(turns: float) -> float:
        return n_dims * math.log(n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(freq_base))

    low, high = pair(beta_fast), pair(beta_slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    return max(0.0, low), min(n_dims - 1.0, high)


def angles(
    pos: np.ndarray, n_dims: int, freq_factors: np.ndarray | None, p: dict[str, Any]
) -> tuple[np.ndarray, float]:
    """Angle of every (token, pair), float64 [n_tok, n_dims / 2], and the magnitude of the rotation.

    Pair i turns by pos * freq_base^(-2i / n_dims) / freq_factors[i]. Interpolation multiplies that
    by freq_scale; YaRN keeps the fast pairs, interpolates the slow ones and blends between, and
    raises the magnitude by 1 + 0.1 ln(1 / freq_scale).
    """
    i = np.arange(n_dims // 2)
    extrapolated = pos.astype(np.float64)[:, None] * p["freq_base"] ** (-2.0 * i / n_dims)
    if freq_factors is not None:
        extrapolated = extrapolated / freq_factors
    theta = p["freq_scale"] * extrapolated
    magnitude = p["attn_factor"]
    if p["ext_factor"] != 0:
        low, high = yarn_range(
            n_dims, p["n_ctx_orig"], p["freq_base"], p["beta_fast"], p["beta_slow"],
            bool(p["whole_pairs"]),
        )  # fmt: skip
        ramp = 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)
        mix = ramp * p["ext_factor"]
        theta = theta * (1 - mix) + extrapolated * mix
        magnitude *= 1 + 0.1 * math.log(1 / p["freq_scale"])
    return theta, magnitude


def rotate(
    x: np.ndarray, pos: np.ndarray, n_dims: int, ff: np.ndarray | None, p: dict[str, Any], mode: str
) -> np.ndarray:
    """The first `n_dims` of each head of x [n_tok, n_head, hd] rotated, in float64."""
    theta, magnitude = angles(pos, n_dims, ff, p)
    cos = (np.cos(theta) * magnitude)[:, None, :]
    sin = (np.sin(theta) * magnitude)[:, None, :]
    half = n_dims // 2
    if mode == "norm":
        first, second = slice(0, n_dims, 2), slice(1, n_dims, 2)
    else:
        first, second = slice(0, half), slice(half, n_dims)
    y = x.astype(np.float64)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first] = a * cos - b * sin
    y[..., second] = a * sin + b * cos
    return y


class Rope(OpSpec):
    name = "rope"
    doc = (
        "Rotates pairs of each head by an angle that grows with the position. Mode norm pairs "
        "(2i, 2i+1); neox pairs (i, i + n_dims/2); 2d splits the head in two halves, rotates each "
        "as neox over n_dims/2 with its own row of positions, half h reading frequency factors "
        "h n_dims/4 onwards. Dimensions from n_dims on (in 2d: of each half) pass through."
    )
    operands = (
        "x f32 [n_tok, n_head, hd]",
        "pos i32 [n_tok] (2d: [2, n_tok])",
        "freq_factors? f32 [n_dims/2]",
    )
    rows_of = 0
    params = (
        Param("n_dims", "i", doc="dimensions that turn; even (2d: a multiple of four)"),
        Param("mode", "i", choices=("norm", "neox", "2d")),
        Param("n_ctx_orig", "i", 0, doc="context the model was trained for (YaRN)"),
        Param("freq_base", "f", 10000.0),
        Param("freq_scale", "f", 1.0, doc="1 / the linear scaling factor"),
        Param("ext_factor", "f", 0.0, doc="YaRN's share of extrapolation; 0 turns YaRN off"),
        Param("attn_factor", "f", 1.0, doc="magnitude of the rotation"),
        Param("beta_fast", "f", 32.0, doc="turns from which a pair is not interpolated"),
        Param("beta_slow", "f", 1.0, doc="turns below which a pair is fully interpolated"),
        Param(
            "whole_pairs", "i", 1, doc="whether the range between the two is widened to whole pairs"
        ),
    )
    cost = "3 an element"
    in_place = (0,)

    def infer(self, *srcs: Any, **params: Any) -> tuple[DType, Shape]:
        x, pos, ff = (*srcs, None)[:3]
        n_dims, two = params["n_dims"], params["mode"] == "2d"
        if x.dtype is not F32 or len(x.shape) != 3 or not rows_dense(x):
            raise self.fail("x must be f32 [n_tok, n_head, hd] with dense rows", *srcs)
        if n_dims <= 0 or n_dims % (4 if two else 2) or n_dims > x.shape[2]:
            unit = "four" if two else "two"
            raise self.fail(f"n_dims={n_dims} must be a multiple of {unit} up to hd", *srcs)
        if two and x.shape[2] % 2:
            raise self.fail("mode 2d needs an even hd", *srcs)
        if pos.dtype is not I32 or pos.shape != ((2, x.shape[0]) if two else x.shape[:1]):
            raise self.fail(f"pos must be i32 {'[2, n_tok]' if two else '[n_tok]'}", *srcs)
        if ff is not None and (ff.dtype is not F32 or ff.shape != (n_dims // 2,)):
            raise self.fail(f"freq_factors must be f32 [{n_dims // 2}]", *srcs)
        if not rows_dense(pos) or (ff is not None and not rows_dense(ff)):
            raise self.fail("pos and freq_factors must be dense", *srcs)
        if params["ext_factor"] != 0 and params["n_ctx_orig"] <= 0:
            raise self.fail("YaRN (ext_factor) needs n_ctx_orig", *srcs)
        return F32, x.shape

    def reference(self, *srcs: Any, **params: Any) -> np.ndarray:
        x, pos, ff = (*srcs, None)[:3]
        n_dims, mode = params["n_dims"], params["mode"]
        if mode != "2d":
            return rotate(x, pos, n_dims, ff, params, mode).astype(np.float32)
        factors = (None, None) if ff is None else np.split(ff, 2)
        halves = [
            rotate(half, row, n_dims // 2, f, params, "neox")
            for half, row, f in zip(np.split(x, 2, axis=2), pos, factors, strict=True)
        ]
        return np.concatenate(halves, axis=2).astype(np.float32)

    def flops(self, out: Tensor) -> int:
        return 3 * out.size

    def cases(self) -> Iterator[Case]:
        def pos(*shape: int) -> Operand:
            return Operand(shape, "i32", lambda rng, s: rng.integers(0, 4096, s))

        def factors(n: int) -> Operand:
            return Operand((n,), data=lambda rng, s: rng.uniform(1, 8, s), role="weight")

        for mode in ("norm", "neox"):
            for shape, n_dims in (((1, 1, 2), 2), ((3, 5, 64), 64), ((31, 3, 80), 80),
                                  ((3, 2, 31), 20), ((172, 1, 8), 8)):  # fmt: skip
                yield Case((Operand(shape), pos(shape[0])), {"n_dims": n_dims, "mode": mode},
                           note=f"{mode} {n_dims} of {shape[2]}")  # fmt: skip
            params: dict[str, Any] = {"n_dims": 64, "mode": mode}
            x = Operand((3, 4, 64))
            yield Case((x, pos(3), factors(32)), {**params, "freq_base": 5e5},
                       note=f"{mode} factors")  # fmt: skip
            yield Case((x, pos(3)), {**params, "freq_scale": 0.25}, note=f"{mode} linear")
            yarn = {"n_ctx_orig": 512, "freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": 0.9}
            yield Case((x, pos(3)), {**params, **yarn}, note=f"{mode} yarn")
            yield Case((x, pos(3), factors(32)), {**params, **yarn, "beta_fast": 16.0,
                       "beta_slow": 2.0}, note=f"{mode} yarn factors")  # fmt: skip
            yield Case((x, pos(3)), {**params, **yarn, "whole_pairs": 0},
                       note=f"{mode} yarn, parts of pairs")  # fmt: skip
            yield Case((Operand((3, 2, 64), pad=(1, 2, 8)), pos(3)), params, note=f"{mode} view")
            yield Case((Operand((3, 2, 64), permute=(1, 0, 2)), pos(3)), params,
                       note=f"{mode} permuted")  # fmt: skip
            zero = Operand((3,), "i32", 0)
            yield Case((x, zero), params, note=f"{mode} position 0")
        params = {"n_dims": 64, "mode": "2d"}
        x = Operand((5, 3, 64))
        yield Case((x, pos(2, 5)), params, note="2d")
        yield Case((x, pos(2, 5)), {"n_dims": 32, "mode": "2d"}, note="2d, half turns")
        yield Case((x, pos(2, 5), factors(32)), params, note="2d factors")
        yield Case((Operand((1, 2, 4)), pos(2, 1)), {"n_dims": 4, "mode": "2d"}, note="2d small")
        yield Case((x, Operand((2, 5), "i32", lambda rng, s: rng.integers(0, 99, s), pad=(1, 3))),
                   params, note="2d, positions are a view")  # fmt: skip
