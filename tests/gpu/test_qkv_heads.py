"""qkv_heads.cu: biases, norms of heads, rotation and rows of the states, behind the products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import nmse, run_on
from kernel_list import DEVICE, EQUAL
from test_mul_mat_columns import build, made_by, weight
from test_mul_mat_few import norm

from gguflow.engine.graph import Operand
from gguflow.kernels.cuda.launch import DeviceInfo, supports

HEADS = 5, 2  # of queries, and of keys and values
RNG = np.random.default_rng(11)


def of_heads(hd: int) -> Operand:
    return Operand((hd,), data=np.linspace(0.5, 1.5, hd, dtype=np.float32), role="weight")


def normed(
    x: Operand, hd: int, dtype: str = "q4_0", state: str = "f32", biases: bool = False,
    norms: bool = True, first: bool = True, turned: int = 0, **params: Any,
) -> Any:  # fmt: skip
    """norm_qkv_rope of x [m, k]. first: whether x gets a norm. turned: dimensions that are."""
    (m, k), rows = x.shape, (HEADS[0] * hd, HEADS[1] * hd, HEADS[1] * hd)
    pos = Operand((m,), "i32", np.arange(m) * 37 % 4096)
    where = Operand((m,), "i32", np.arange(m)[::-1].copy())
    states = (Operand((64, n), state, role="state") for n in rows[1:])
    bias = (
        Operand((n,), data=np.linspace(-1, 1, n, dtype=np.float32), role="weight") for n in rows
    )
    more = [None, *(bias if biases else (None,) * 3), *((of_heads(hd),) * 2 if norms else ())]
    given = {"eps": 1e-5, "head_eps": 1e-6, "head_dim": hd, "n_dims": turned or hd, "mode": "neox"}
    weights = (weight(n, k, dtype) for n in rows)
    return build("norm_qkv_rope", x, norm(k) if first else None, *weights, pos, where, *states,
                 *more, **(given | params))  # fmt: skip


def kernels(node: Any, device: DeviceInfo = DEVICE) -> list[str]:
    assert supports(node, device.equal_bits)
    return [s.kernel.entry.partition("<")[0] for s in made_by(node, device)]


def test_one_launch_for_the_products_and_one_for_the_heads() -> None:
    x = Operand((1, 512))
    assert kernels(normed(x, 128).node) == ["mul_mat_vec", "qkv_heads"]
    assert kernels(normed(x, 128).node, EQUAL) == ["mul_mat_one", "qkv_heads"]
    assert kernels(normed(x, 64, norms=False, biases=True).node) == ["mul_mat_vec", "qkv_heads"]
    assert kernels(normed(x, 64, norms=False, turned=32).node) == ["mul_mat_vec", "qkv_heads"]
    several = normed(Operand((4, 512)), 128)
    assert kernels(several.node) == ["int8_columns", "mul_mat_few", "qkv_heads"]


def test_products_that_turn_what_they_make_need_no_other() -> None:
    x = Operand((1, 512))
    for first in (True, False):
        assert kernels(normed(x, 64, norms=False, first=first).node) == ["mul_mat_vec"]


def test_columns_are_rounded_once_for_products_by_themselves() -> None:
    entries = kernels(normed(Operand((300, 512)), 128, first=False).node)
    assert entries.count("round_rows") == 1 and entries[-1] == "qkv_heads"


def test_an_odd_number_of_rows_is_left_to_products_by_themselves() -> None:
    weights = [weight(n, 64, "q8_0") for n in (15, 15, 9)]
    where = [Operand((1,), "i32", 0)] * 2
    states = (Operand((4, n), "f32", role="state") for n in (15, 9))
    built = build("norm_qkv_rope", Operand((1, 64)), None, *weights, *where, *states, None,
                  *(None,) * 3, *(norm(5),) * 2, head_dim=5, n_dims=4, mode="norm")  # fmt: skip
    assert kernels(built.node) == [*["mul_mat_vec"] * 3, "qkv_heads"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q6_K", "f16", "f32"])
@pytest.mark.parametrize("m", [1, 2, 7, 20, 64])
@pytest.mark.parametrize("hd, turned", [(64, 64), (80, 32), (128, 128), (256, 64)])
def test_values(gpu: Any, dtype: str, m: int, hd: int, turned: int) -> None:
    for state, biases, first in (("f16", True, True), ("bf16", False, False)):
        x = Operand((m, 768))
        built = normed(x, hd, dtype, state, biases, first=first, turned=turned)
        assert nmse(run_on(gpu, built), built.expected) < built.tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["norm", "neox"])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("hd, turned", [(64, 64), (80, 32), (96, 96), (128, 128), (256, 256)])
def test_the_bits_are_those_of_the_ops_one_by_one(
    gpu: Any, hd: int, turned: int, biases: bool, mode: str
) -> None:
    m, k = 5, 192
    x = Operand((m, k), "f32", RNG.standard_normal((m, k)).astype(np.float32))
    built = normed(x, hd, "f32", "f32", biases, first=False, turned=turned, mode=mode)
    found = run_on(gpu, built)
    y = run_on(gpu, build("mul_mat", weight(HEADS[0] * hd, k, "f32"), x))
    if biases:
        y = y + np.linspace(-1, 1, HEADS[0] * hd, dtype=np.float32)
    heads = Operand((m, HEADS[0], hd), "f32", y.reshape(m, HEADS[0], hd))
    heads = Operand(heads.shape, "f32", run_on(gpu, build("rms_norm_mul", heads, of_heads(hd),
                                                          eps=1e-6)))  # fmt: skip
    pos = Operand((m,), "i32", np.arange(m) * 37 % 4096)
    expected = run_on(gpu, build("rope", heads, pos, n_dims=turned, mode=mode))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["q4_0", "q4_K", "f16"])
@pytest.mark.parametrize("hd", [64, 128, 256])
def test_a_token_has_the_same_bits_alone_and_beside_others(gpu: Any, dtype: str, hd: int) -> None:
    x = RNG.standard_normal((16, 768)).astype(np.float32)

    def result(m: int) -> np.ndarray:
        return run_on(gpu, normed(Operand((m, 768), "f32", x[:m]), hd, dtype, biases=True))

    whole = result(16)
    for m in (2, 3, 8, 9):
        assert result(m).tobytes() == whole[:m].tobytes(), m
