"""Muon: momentum whose update is orthogonalized, for the matrices inside the blocks.

Keller Jordan and others, "Muon: an optimizer for hidden layers in neural networks" (2024).
"""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration: g = U S V^T [batch, n, k] -> about U V^T, in bfloat16.

    The quintic's coefficients are the published ones: they trade exactness (singular values end
    between about 0.7 and 1.2) for the steepest slope at zero.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalized; matrices of one shape are stacked and stepped at once."""

    def __init__(self, params, lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        by_shape: dict[torch.Size, list] = {}
        for p in params:
            by_shape.setdefault(p.shape, []).append(p)
        groups = [{"params": same} for same in by_shape.values()]
        super().__init__(groups, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            params = group["params"]
            g = torch.stack([p.grad for p in params])
            state = self.state[params[0]]
            if not state:
                state["momentum"] = torch.zeros_like(g)
            m = state["momentum"]
            m.lerp_(g, 1 - group["momentum"])
            update = orthogonalize(g.lerp(m, group["momentum"])).float()
            rows, cols = params[0].shape
            scale = group["lr"] * max(1.0, rows / cols) ** 0.5
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(params, list(update.unbind()), alpha=-scale)
