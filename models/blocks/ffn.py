"""Feed-forward layers: two matrices with an activation between, or three with a gate."""

from __future__ import annotations

from collections.abc import Iterator

from gguflow.engine.graph import Tensor

from ..base import WeightSpec
from ..hparams import HParams
from .linear import linear, linear_weights
from .site import Site

# The product of an activated gate and up, by activation (Shazeer 2020, arXiv 2002.05202).
GLU = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}


def ffn(at: Site, h: Tensor, *, act: str, up_act: str = "", cut: float = 0.0) -> Tensor:
    """down(act(gate h) * up h), or down(act(up h)) where there is no gate.

    h: normed input f32 [m, n_embd]; returns the same shape. act: an op of one operand. up_act:
    another one over up, beside a gate. cut: of ReLU, up to which value it makes zero.
    """
    g = at.g

    def activate(op: str, x: Tensor, name: str) -> Tensor:
        return g.fatrelu(x, cut=cut, name=name) if cut and op == "relu" else g.op(op, x, name=name)

    if at.find("ffn_gate.weight") is None:
        return down(at, activate(act, linear(at, "ffn_up", h, "up"), name="act"))
    gate = linear(at, "ffn_gate", h, "gate")
    up = linear(at, "ffn_up", h, "up")
    if up_act:
        up = activate(up_act, up, name="up_act")
    return down(at, g.mul(activate(act, gate, name="act"), up, name=GLU[act]))


def down(at: Site, hidden: Tensor) -> Tensor:
    """The neurons' sum, by a matrix with a row an output or, transposed, with one a neuron."""
    w, g = at.find("ffn_down_t.weight"), at.g
    if w is None:
        return linear(at, "ffn_down", hidden, "down")
    found = (at.find(f"{name}.bias") for name in ("ffn_down_t", "ffn_down"))
    bias = next((b for b in found if b is not None), None)
    if bias is None:
        return g.axpy_sparse(w, hidden, name="down")
    return g.add(g.axpy_sparse(w, hidden, name="down_mm"), bias, name="down")


def ffn_weights(hp: HParams, *, gated: bool) -> Iterator[WeightSpec]:
    """Of `ffn`. A file may hold gate and up as one, in this order, under the name of up."""
    n = hp.n_ff
    if gated:
        yield from linear_weights("ffn_gate", n, hp.n_embd, ("ffn_up", 0, 2 * n))
    yield from linear_weights("ffn_up", n, hp.n_embd, ("ffn_up", n, 2 * n) if gated else None)
    yield from linear_weights("ffn_down", hp.n_embd, n)
