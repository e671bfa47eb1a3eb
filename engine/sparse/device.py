"""A ReLU model over a device and the host: what goes to the device within a budget of its memory.

First what every token reads in full: attention, with the norms and the KV cache, which cannot lie
apart from it; then the predictors, layer by layer; then the output head; and with what is left the
rows of neurons. Each stays on the host when it does not fit, attention is refused. The embeddings
stay on the host, where a token reads one row of them, unless the output head is tied to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gguflow.engine.backends.base import Backend
from gguflow.engine.compile import Plan, human_bytes, round_up
from gguflow.engine.graph import Role
from gguflow.engine.loader import ModelSource

from .budget import BudgetError, no_neurons
from .place import place_neurons
from .run import SparseRun
from .source import with_hot_rows
from .split import NeuronSplit
from .store import NoStatsError

Overrides = tuple[tuple[str, str], ...]
PlanFor = Callable[[ModelSource, SparseRun, Overrides], Plan]  # the largest plan of a placement

# For what no plan counts: code of kernels, captured graphs, workspaces of libraries. The driver's
# own context is not counted: it is there before anything is placed, and other engines have it too.
GROWTH_BYTES = 64 << 20


@dataclass(frozen=True)
class Groups:
    """What besides attention is on the device: predictors of the first layers, the output head."""

    predictors: int = 0
    output: bool = False


def overrides(
    n_gpu: Sequence[int], n_ff: int, groups: Groups, tied: bool, device: str, host: str
) -> Overrides:
    """Placement rules for weights, states, inputs and nodes. n_gpu: neurons on the device by layer;
    tied: the embeddings are the output head."""
    cold = "|".join(str(i) for i, n in enumerate(n_gpu) if n < n_ff)
    predicted = "|".join(map(str, range(groups.predictors, len(n_gpu))))
    rules = []
    if not (tied and groups.output):
        rules.append(r"^(token_embd\.weight|embd|tokens)$")
    if not groups.output:
        rules.append(r"^(output\.weight|logits|sample|sampler\..*)$")
    if cold:
        rules.append(rf"^blk\.({cold})\.(ffn_(gate|up|down_t)\.weight|gpu_idx)$")
        rules.append(rf"^blk\.({cold})\.ffn\.cold(_.*)?$")
    if predicted:
        rules.append(rf"^blk\.({predicted})\.(fc[12]\.weight|ffn\.predict(_.*)?)$")
    return (*((rule, host) for rule in rules), (".*", device))


@dataclass
class DevicePlacement:
    """How a model is placed, and on what.

    budget: bytes of device memory in all, 0 for what is free.
    """

    source: ModelSource
    run: SparseRun
    device: Backend
    host: Backend
    plan_for: PlanFor
    budget: int
    n_threads: int | None = None

    def __post_init__(self) -> None:
        assert self.device.memory is not None, f"{self.device.name} has no memory of its own"
        self.unit = self.device.memory.unit
        free = self.device.memory.room()[0]
        self.limit = min(self.budget or free, free)
        self.tied = "output.weight" not in self.source.weights

    # -- plans -----------------------------------------------------------------------------------

    def plan(self, split: NeuronSplit, groups: Groups) -> Plan:
        rules = overrides(
            split.n_gpu, split.n_ff, groups, self.tied, self.device.name, self.host.name
        )
        run = replace(self.run, n_gpu=split.n_gpu)
        return self.plan_for(with_hot_rows(self.source, split), run, rules)

    def needs(self, plan: Plan) -> int:
        """All that a plan takes of the device."""
        return plan.bytes_by_space()[self.device.space].total + GROWTH_BYTES

    def work(self) -> int:
        """Bytes that the values of a run take there, whatever is placed."""
        hp = self.source.arch.hp
        plan = self.plan(no_neurons(hp.n_layer, hp.n_ff), Groups(hp.n_layer, True))
        return plan.bytes_by_space()[self.device.space].working

    # -- what goes there -------------------------------------------------------------------------

    def place(self, fixed: NeuronSplit | None = None) -> NeuronSplit:
        """Place the model; the last call of `plan_for` is the placement found.

        fixed: a split to use as it is. Raises BudgetError with the figures when attention, or the
        fixed split, does not fit; what the solver raises.
        """
        hp = self.source.arch.hp
        none = no_neurons(hp.n_layer, hp.n_ff)
        groups = self._groups(none)
        split, how = (fixed, "as given") if fixed is not None else self._choose(none, groups)
        plan = self.plan(split, groups)
        total = self.needs(plan)
        if total > self.limit:
            raise BudgetError(
                f"{self._said()}: the split's {sum(split.n_gpu)} neurons take "
                f"{human_bytes(total)} with all else there, {human_bytes(total - self.limit)} more"
            )
        n, every = sum(split.n_gpu), split.n_ff * split.n_layer
        self.source.notes.append(
            f"{self.device.space}: attention, {groups.predictors} of {hp.n_layer} predictors, "
            f"{'the' if groups.output else 'not the'} output head, {n} of {every} neurons "
            f"({100 * n / every:.1f} %, {min(split.n_gpu)} to {max(split.n_gpu)} a layer; {how}): "
            f"{human_bytes(total)} of {human_bytes(self.limit)}"
        )
        return split

    def _groups(self, none: NeuronSplit) -> Groups:
        plan = self.plan(none, Groups())
        left = self.limit - self.needs(plan)
        if left < 0:
            raise BudgetError(self._too_small(plan, -left))
        groups = Groups()
        if self.run.mode == "predict":
            groups = Groups(predictors=self._predictors(left))
        with_output = replace(groups, output=True)
        return with_output if self.needs(self.plan(none, with_output)) <= self.limit else groups

    def _predictors(self, left: int) -> int:
        """The first layers whose predictors take no more than `left` bytes."""
        for i in range(self.source.arch.hp.n_layer):
            for part in ("fc1", "fc2"):
                w = self.source.weights[f"blk.{i}.{part}.weight"]
                left -= round_up(w.nbytes, self.unit)
            if left < 0:
                return i
        return self.source.arch.hp.n_layer

    def _choose(self, none: NeuronSplit, groups: Groups) -> tuple[NeuronSplit, str]:
        """The solver's split for what is left."""

        def plan_for(split: NeuronSplit) -> Plan:
            return self.plan(split, groups)

        try:
            placed = place_neurons(
                self.source, self.limit - GROWTH_BYTES, self.device, self.host, plan_for,
                self.run.mode == "exact", self.n_threads,
            )  # fmt: skip
        except NoStatsError:
            return self._first_that_fit(groups), (
                "the first of each layer, for nobody counted how often each fires: "
                "`gguflow sparse stats`"
            )
        return placed.split, f"split: {placed.path}"

    def _first_that_fit(self, groups: Groups) -> NeuronSplit:
        """As many of every layer's first neurons as fit."""
        hp = self.source.arch.hp

        def split(n: int) -> NeuronSplit:
            return NeuronSplit(hp.n_ff, (np.arange(n, dtype=np.int32),) * hp.n_layer)

        least, most = 0, hp.n_ff
        while least < most:
            middle = (least + most + 1) // 2
            if self.needs(self.plan(split(middle), groups)) <= self.limit:
                least = middle
            else:
                most = middle - 1
        return split(least)

    # -- words -----------------------------------------------------------------------------------

    def _said(self) -> str:
        if self.budget:
            return f"--vram-budget {self.budget / 2**30:.3g} GiB"
        return f"{self.device.space} with {human_bytes(self.limit)}"

    def _too_small(self, plan: Plan, missing: int) -> str:
        space = self.device.space
        here = [t for t in plan.leaves(Role.WEIGHT) if plan.space_of(t) == space]
        attention = sum(t.nbytes for t in here if ".attn_" in t.name)
        b = plan.bytes_by_space()[space]
        return (
            f"{self._said()}: {human_bytes(self.needs(plan))} are needed before the first neuron, "
            f"{human_bytes(missing)} more: attention {human_bytes(attention)}, KV cache "
            f"{human_bytes(b.states)}, work memory {human_bytes(b.working)}, kernels "
            f"{human_bytes(GROWTH_BYTES)}; raise it or lower -c or -ub"
        )
