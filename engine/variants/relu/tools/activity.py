"""How much of a loaded model's layers fires and is computed: a second pass over its tokens, apart
from any timing."""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.model import Model
from gguflow.engine.profile import ActivityRow

from ..activity import N_UBATCH, whole_gates


def measure_activity(model: Model, ids: Sequence[int]) -> list[ActivityRow]:
    """How much of each layer fires and is computed over a sequence of tokens.

    The layers run as `model` runs them, so that their inputs are those of the sparse run. Empty for
    a model that runs dense.
    """
    gates = whole_gates(model.setup)
    if gates is None or not len(ids):
        return []
    run = model.with_options(n_ubatch=N_UBATCH, n_ctx=len(ids)).with_rewrite(gates)
    return gates.activity(run.outputs(ids))
