"""A million draws of the `sample` op follow the distribution that its settings state, on hosts and
devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from sizes import smaller

import gguflow.engine.ops  # noqa: F401  (registers the ops)
from gguflow.engine.backends.base import Backend, Buffer, find_backend
from gguflow.engine.backends.cpu.backend import CpuBackend
from gguflow.engine.graph import F32, I32, I64, Graph, Tensor

DRAWS, ROWS, N_VOCAB = smaller(1_000_000, 50), 20_000, 24
AT_ONCE = 800  # rows of a run, at least
LEAST_EXPECTED = 10.0  # draws of a cell; rarer tokens share one

SETTINGS = {
    "plain": (1.0, 0, 1.0, 0.0),
    "hot": (1.7, 0, 1.0, 0.0),
    "top_k": (0.8, 9, 1.0, 0.0),
    "top_p": (0.9, 0, 0.85, 0.0),
    "min_p": (1.0, 0, 1.0, 0.05),
    "all": (0.8, 20, 0.95, 0.02),
}


def stated(logits: np.ndarray, temp: float, k: float, top_p: float, min_p: float) -> np.ndarray:
    """The probabilities in float64: top_k, top_p and min_p of the plain softmax, then the
    temperature."""
    x = logits.astype(np.float64)
    order = np.argsort(-x, kind="stable")
    if k:
        order = order[: int(k)]
    p = np.exp(x[order] - x[order[0]])
    if top_p < 1:
        order = order[: np.argmax(np.cumsum(p) >= top_p * p.sum()) + 1]
    if min_p > 0:
        order = order[np.exp(x[order] - x[order[0]]) >= min_p]
    out = np.zeros(len(x))
    out[order] = np.exp((x[order] - x[order[0]]) / temp)
    return out / out.sum()


class Rows:
    """Memory of a graph: a buffer a leaf, and one of all results, which follow each other."""

    def __init__(self, backend: Backend, g: Graph, nodes: list[Tensor]) -> None:
        self.rows: dict[Tensor, str] = {}
        self.results = backend.alloc(sum(n.nbytes for n in nodes))
        self._at = {t: (backend.alloc(t.nbytes), 0) for t in g.leaves.values()}
        self._at |= {n: (self.results, i * n.nbytes) for i, n in enumerate(nodes)}

    def locate(self, owner: Tensor) -> tuple[Buffer, int]:
        return self._at[owner]

    def is_packed(self, owner: Tensor) -> bool:
        return False


def draw(
    backend: Backend, logits: np.ndarray, settings: tuple[float, ...], numbers: np.ndarray,
    rows: int = ROWS,
) -> np.ndarray:  # fmt: skip
    """How often each token is drawn, by ops of `rows` rows, some of them a run. numbers: i64
    [DRAWS, 2], seeds and steps."""
    many, g = max(rows, AT_ONCE), Graph()
    constant = {
        g.input("logits", F32, (rows, N_VOCAB)): np.tile(logits, (rows, 1)),
        g.input("settings", F32, (rows, 8)): np.tile([*settings, 1.0, 0, 0, 0], (rows, 1)),
        g.input("history", I32, (rows, 1)): np.full((rows, 1), -1),
    }
    drawn = g.input("numbers", I64, (many, 2))
    x, s, h = constant
    parts = [g.slice(drawn, 0, i, i + rows) for i in range(0, many, rows)]
    nodes = [g.op("sample", x, s, part, h) for part in parts]
    memory = Rows(backend, g, nodes)
    for leaf, values in constant.items():
        memory.locate(leaf)[0].write(0, np.ascontiguousarray(values, leaf.dtype.storage))
    program, buffer = backend.lower(nodes, memory), memory.locate(drawn)[0]
    counts = np.zeros(N_VOCAB, np.int64)
    for i in range(0, len(numbers), many):
        buffer.write(0, numbers[i : i + many])
        program.run()
        ids = memory.results.read(0, memory.results.nbytes).view(np.int32)
        counts += np.bincount(ids, minlength=N_VOCAB)
    return counts


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Of Pearson's statistic, rare tokens taken together."""
    assert not counts[expected == 0].any(), "a token was drawn that the filters leave out"
    often = expected >= LEAST_EXPECTED
    rare = (expected > 0) & ~often
    found, wanted = counts[often].astype(float), expected[often]
    if rare.any():
        found = np.append(found, counts[rare].sum())
        wanted = np.append(wanted, expected[rare].sum())
    assert len(found) > 3, "too few cells to say anything"
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    return float(chi2.sf(statistic, len(found) - 1))


def check_draws(backend: Backend, settings: tuple[float, ...], rows: int = ROWS) -> None:
    """The steps of one seed, as a generation takes them, and for plain settings also the first step
    of every seed, as requests do."""
    logits = (np.random.default_rng(3).standard_normal(N_VOCAB) * 1.2).astype(np.float32)
    expected = DRAWS * stated(logits, *settings)
    one, zero = np.full(DRAWS, 4711), np.zeros(DRAWS, int)
    ways = [np.stack([one, np.arange(DRAWS)], axis=1)]
    if settings == SETTINGS["plain"]:
        ways.append(np.stack([np.arange(DRAWS), zero], axis=1))
    for numbers in ways:
        counts = draw(backend, logits, settings, numbers.astype(np.int64), rows)
        assert counts.sum() == DRAWS
        assert p_value(counts, expected) > 1e-3


@pytest.mark.parametrize(
    "settings",
    [pytest.param(s, id=n, marks=[] if n == "all" else [pytest.mark.slow])
     for n, s in SETTINGS.items()],
)  # fmt: skip
def test_draws_follow_what_is_stated(settings: tuple[float, ...]) -> None:
    check_draws(CpuBackend(2), settings)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [8, ROWS])  # few and many have kernels of their own
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_draws_of_a_gpu_follow_what_is_stated(settings: tuple[float, ...], rows: int) -> None:
    gpu: Any = pytest.importorskip("gguflow.engine.backends.cuda")
    try:
        backend = find_backend("cuda")
    except gpu.CudaError as e:
        pytest.skip(str(e))
    check_draws(backend, settings, rows)


def test_the_statistic_sees_a_small_bias() -> None:
    """A hundredth of one token's probability given to another is far outside."""
    p = stated(np.linspace(0, 3, N_VOCAB), 1.0, 0, 1.0, 0.0)
    off = p.copy()
    off[5] += 0.01 * p[-1]
    off[-1] -= 0.01 * p[-1]
    rng = np.random.default_rng(0)
    assert p_value(rng.multinomial(DRAWS, p), DRAWS * p) > 1e-3
    assert p_value(rng.multinomial(DRAWS, off), DRAWS * p) < 1e-3
