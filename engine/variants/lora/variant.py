"""The LoRA variant: what adapters add to products is computed beside them, row by row.

Every row of a batch has a factor for each adapter, so requests with different adapters, or none,
share a batch (Chen et al. 2023, "Punica"; one model's products are computed once for all).
"""

from __future__ import annotations

from collections.abc import Sequence

from gguflow.engine.adapters import input_name
from gguflow.engine.compile import replace_values
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import F32, Graph, Tensor
from gguflow.engine.options import OptionError
from gguflow.engine.planning import Setup
from gguflow.engine.variants.base import Decision, Tools
from gguflow.models.base import ModelError

from .source import Change, read_adapter

_OPS = ("mul_mat", "mul_mat_id", "get_rows")  # whose results an adapter adds to


class LoraVariant:
    """Of models whose options name adapters."""

    def prepare(self, setup: Setup) -> Setup:
        source = setup.source
        found = [read_adapter(path, i, source) for i, (path, _) in enumerate(setup.options.lora)]
        weights = dict(source.weights)
        for adapter in found:
            weights |= adapter.weights
        more = sum(w.nbytes for a in found for w in a.weights.values())
        files = tuple(file for file, _ in setup.options.lora)
        rewrite = LoraRewrite(tuple(a.changes for a in found), source.path, files)
        return replace(
            setup,
            source=replace(source, weights=weights, n_bytes=source.n_bytes + more),
            rewrites=(*setup.rewrites, rewrite),
        )

    def place(self, original: Setup, setup: Setup, tools: Tools) -> Decision:
        return Decision(setup)

    def again(self, setup: Setup, changed: frozenset[str]) -> Setup:
        """Factors may change; which adapters there are is settled when a model is loaded."""
        found = next((r for r in setup.rewrites if isinstance(r, LoraRewrite)), None)
        loaded = found.files if found else ()
        if tuple(file for file, _ in setup.options.lora) != loaded:
            raise OptionError("`lora`: adapters are loaded with the model")
        return setup


@dataclass(frozen=True, eq=False)
class LoraRewrite:
    """adapters: the changes of each by weight. path: of the model, for messages. files: the
    adapters'."""

    adapters: Sequence[dict[str, Change]]
    path: str
    files: tuple[str, ...]

    def rewrite(self, g: Graph) -> None:
        """Add to every product with a changed weight. Raises ModelError naming a weight that is
        used in another way."""
        swap: dict[Tensor, Tensor] = {}
        names = {name for changes in self.adapters for name in changes}
        for node in [*g.nodes]:
            changed = [s for s in node.live_srcs() if s.name in names and s.owner is s]
            if not changed:
                continue
            w = changed[0]
            if node.op not in _OPS or node.srcs[0] is not w:
                raise ModelError(
                    f"{self.path}: {w.name} is read by {node.op}, to which no adapter can be added"
                )
            swap[node] = self._changed(g, node)
        replace_values(g, swap)

    def _changed(self, g: Graph, node: Tensor) -> Tensor:
        """The node's value with what the adapters add."""
        at = g.nodes.index(node) + 1
        after = g.nodes[at:]
        del g.nodes[at:]
        try:
            w = node.srcs[0]
            y = g.op(node.op or "", *node.srcs, name=f"{node.name}.base", **node.params)
            for i, changes in enumerate(self.adapters):
                if w is not None and w.name in changes:
                    y = self._added(g, node, y, i, changes[w.name])
            return y
        finally:
            g.nodes += after

    def _added(self, g: Graph, node: Tensor, y: Tensor, i: int, change: Change) -> Tensor:
        a, b, name = g.leaves[change.a], g.leaves[change.b], f"{node.name}.lora{i}"
        x, ids = (*node.srcs, None, None)[1:3]
        assert x is not None
        if node.op == "get_rows":
            low = g.get_rows(a, x, name=f"{name}_a")
        elif node.op == "mul_mat_id":
            low = g.mul_mat_id(a, x, ids, name=f"{name}_a")
        elif a.shape[1] != x.shape[-1]:
            raise ModelError(
                f"{self.path}: {node.srcs[0].name if node.srcs[0] else ''} is the output head too, "
                "to which an adapter of the embeddings cannot be added"
            )
        else:
            low = g.mul_mat(a, x, name=f"{name}_a")
        factors = _factors(g, i, low.shape[0])
        if len(low.shape) == 3:  # of experts, one for each that a row has
            factors = g.reshape(factors, (low.shape[0], 1, 1))
        low = g.mul(low, factors, name=f"{name}_scaled")
        if change.factor != 1.0:
            low = g.scale(low, s=change.factor, name=f"{name}_factor")
        if node.op == "mul_mat_id":
            return g.add(y, g.mul_mat_id(b, low, ids, name=f"{name}_b"), name=name)
        return g.add(y, g.mul_mat(b, low, name=f"{name}_b"), name=name)


def _factors(g: Graph, i: int, n: int) -> Tensor:
    """The input [n, 1] with every row's factor of adapter i: of tokens or of outputs."""
    outputs = n != g.leaves["tokens"].shape[0]
    return g.input(input_name(i, outputs), F32, (n, 1))
