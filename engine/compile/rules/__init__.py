"""The rules of fusion, in the order they are applied: later ones see what earlier ones made."""

from gguflow.engine.compile.rules import attention, dense, gated, parallel, sparse
from gguflow.engine.compile.rules.base import Rewrite, Rule, fused_node

RULES: tuple[Rule, ...] = (
    *dense.RULES,
    *gated.RULES,
    *attention.RULES,
    *sparse.RULES,
    *parallel.RULES,
)

__all__ = ["RULES", "Rewrite", "Rule", "fused_node"]
