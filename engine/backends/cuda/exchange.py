"""What a program exchanges with those of other GPUs while they run: the launches for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gguflow.engine.backends.base import Reduce
from gguflow.engine.compile import Step
from gguflow.engine.graph import Tensor, exchanged_by_rank
from gguflow.kernels.cuda import all_reduce, all_reduce_norm
from gguflow.kernels.cuda.launch import Launch, Operand, Rounded, RoundedNorm, rounds_to

from .device import CudaDevice

Locate = Callable[[Tensor], Operand | None]


class Exchanges:
    """Of the steps of one program. reduces: its side of each."""

    def __init__(
        self, device: CudaDevice, steps: Sequence[Step], reduces: Mapping[Tensor, Reduce]
    ) -> None:
        self._device, self._reduces = device, reduces
        norms = {s for s in reduces if len(exchanged_by_rank(s)[0]) > 1}
        self._dtypes = self._rounded_types(norms, steps) if norms else {}

    def makes_norm(self, node: Tensor) -> bool:
        """Whether the launch of a node that exchanges may make the norm of its rows too."""
        by_rank = exchanged_by_rank(node)
        added = len(by_rank[0]) == 1 and len(node.srcs) > len(by_rank)
        return (
            added
            and len(node.shape) == 2
            and all_reduce.makes_norms(len(by_rank), node.nbytes, node.shape[1])
        )

    def launch(self, node: Tensor, locate: Locate, norm: RoundedNorm | None = None) -> Launch:
        """The launch of a node that exchanges. norm: to be made too, where `makes_norm`."""
        reduce = self._reduces[node]
        others = [c for k, c in enumerate(reduce.channels) if k != reduce.rank]
        shared = not all(map(self._device.is_elsewhere, others))
        by_rank = exchanged_by_rank(node)
        n_beside = len(node.srcs) - sum(map(len, by_rank))
        beside, own = node.srcs[:n_beside], by_rank[reduce.rank]
        to, *addresses = (
            0 if o is None else o.address
            for o in (None if t is None else locate(t) for t in (node, *beside, *own))
        )
        if len(own) == 1:
            *residual, part = addresses
            sizes = all_reduce_norm.whole_sizes(reduce.sizes, reduce.shares)
            return all_reduce.exchange(
                to, part, residual[0] if residual else 0, node.nbytes, reduce.rank, reduce.channels,
                sizes, shared, reduce.given_up, reduce.code, reduce.timeout_ns, norm,
            )  # fmt: skip
        w, residual_rows, part = addresses
        sides = all_reduce_norm.Sides(
            reduce.channels, reduce.sizes, reduce.shares, shared, reduce.given_up, reduce.code,
            reduce.timeout_ns,
        )  # fmt: skip
        rows = [r.shape[0] for r, _ in by_rank]
        return all_reduce_norm.exchange(
            to, part, residual_rows, w, node.params["eps"], node.shape[1], rows, reduce.rank,
            self._dtypes.get(node, "f32"), sides,
        )  # fmt: skip

    def rounded(self, node: Tensor, locate: Locate) -> Rounded | None:
        """Where a product's columns are, if an exchange left them rounded."""
        for s in node.live_srcs():
            dtype = self._dtypes.get(s.owner)
            at = locate(s.owner) if dtype is not None else None
            if dtype is not None and at is not None:
                return all_reduce_norm.rounded(dtype, at.address, *s.shape)
        return None

    def _rounded_types(self, norms: set[Tensor], steps: Sequence[Step]) -> dict[Tensor, str]:
        """What all readers of norms round them to, where they agree. That follows from types and
        shapes alone, so that all devices come to the same."""
        found: dict[Tensor, set[str | None]] = {}
        for node in steps:
            for s in node.live_srcs() if isinstance(node, Tensor) else ():
                if s.owner not in norms or (s.view_offset and node in norms):
                    continue  # the residual, below the norms
                assert isinstance(node, Tensor)
                all_rows = s.owner.srcs[2]
                whole = not s.view_offset and all_rows is not None and s.shape == all_rows.shape
                dtype = rounds_to(node, self._device.info) if whole else None
                found.setdefault(s.owner, set()).add(dtype)
        agreed: dict[Tensor, str] = {}
        for t, dtypes in found.items():
            dtype, *others = dtypes
            if dtype is not None and not others:
                agreed[t] = dtype
        return agreed
