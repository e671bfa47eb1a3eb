"""A ReLU model over a device and the host: what goes to the device within a budget of its memory.

First what every token reads in full: attention, with the norms and the KV cache, which cannot lie
apart from it; then the predictors, layer by layer; then the output head; and with what is left the
rows of neurons. Each stays on the host when it does not fit, attention is refused. The embeddings
stay on the host, where a token reads one row of them, unless the output head is tied to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gguflow.engine.backends.base import Backend, DeviceMemory
from gguflow.engine.compile import Plan, human_bytes, padded_bytes, round_up
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import Role
from gguflow.engine.load.offload import Overrides
from gguflow.engine.options import OptionError
from gguflow.engine.planning import Planner, Setup, prompt_key
from gguflow.engine.variants.base import Decision, Tools

from .budget import BudgetError, no_neurons
from .identity import model_hash
from .place import place_neurons
from .run import sparse_run, with_run
from .source import with_hot_rows
from .split import NeuronSplit, read_split
from .store import NoStatsError

# For what no plan counts: code of kernels, captured graphs, workspaces of libraries. The driver's
# own context is not counted: it is there before anything is placed, and other engines have it too.
GROWTH_BYTES = 64 << 20
LEAST_UBATCH = 32  # down to which prompts are cut smaller when a device has memory for little,
WORK_SHARE = 64  # and the part of it that the values of a run may take then


def place_on_device(setup: Setup, tools: Tools) -> Decision:
    """Divide a model between the device and the host by `vram_budget` or `split`.

    Raises BudgetError with the figures when it does not fit, GgufError for a bad split file, what
    the solver raises.
    """
    options, hp = setup.options, setup.source.arch.hp
    if tools.host is None:
        raise OptionError("`backends`: a budget and a split need a backend beside the device's")
    device = tools.device
    assert device is not None
    free = memory_of(device).room()[0]
    limit = min(options.vram_budget or free, free)
    placement = DevicePlacement(setup, tools.planner, device, tools.host, limit)
    asked = options.n_ubatch
    while (
        placement.setup.options.n_ubatch > LEAST_UBATCH and placement.work() > limit // WORK_SHARE
    ):
        smaller = replace(setup, most_ubatch=placement.setup.options.n_ubatch // 2).under(options)
        placement = replace(placement, setup=smaller)
    notes = []
    if (n_ubatch := placement.setup.options.n_ubatch) < asked:
        notes.append(
            f"prompts in pieces of {n_ubatch} tokens instead of {asked}, which "
            "leaves the device's memory to weights"
        )
    fixed = None
    if options.split:
        fixed = read_split(options.split, hp.n_layer, hp.n_ff, model_hash(setup.source))
    placed, note = placement.place(fixed)
    return Decision(placed, (*notes, note))


def memory_of(device: Backend) -> DeviceMemory:
    """The memory of a device that has its own."""
    assert device.memory is not None, f"{device.name} has no memory of its own"
    return device.memory


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
        rules.append(rf"^blk\.({cold})\.(ffn_(gate|up|down_t)\.weight|ffn_up\.bias|gpu_idx)$")
        rules.append(rf"^blk\.({cold})\.ffn\.cold(_.*)?$")
    if predicted:
        rules.append(rf"^blk\.({predicted})\.(fc[12]\.weight|ffn\.predict(_.*)?)$")
    return (*((rule, host) for rule in rules), (".*", device))


@dataclass(frozen=True, eq=False)
class DevicePlacement:
    """How a model is placed, and on what. limit: bytes of device memory to use in all."""

    setup: Setup
    planner: Planner
    device: Backend
    host: Backend
    limit: int

    # -- plans -----------------------------------------------------------------------------------

    def placed(self, split: NeuronSplit, groups: Groups) -> Setup:
        """The model with these neurons and groups on the device."""
        setup = self.setup
        run = sparse_run(setup)
        assert run is not None
        tied = "output.weight" not in setup.source.weights
        rules = overrides(split.n_gpu, split.n_ff, groups, tied, self.device.name, self.host.name)
        options = replace(setup.options, overrides=(*setup.options.overrides, *rules))
        source = with_hot_rows(setup.source, split)
        return with_run(replace(setup, source=source, options=options), replace(run, split=split))

    def plan(self, split: NeuronSplit, groups: Groups) -> Plan:
        return self._plan(self.placed(split, groups))

    def _plan(self, setup: Setup) -> Plan:
        return self.planner.plan(setup, prompt_key(setup.options))

    def needs(self, plan: Plan) -> int:
        """All that a plan takes of the device."""
        return plan.bytes_by_space()[self.device.space].total + GROWTH_BYTES

    def work(self) -> int:
        """Bytes that the values of a run take there, whatever is placed."""
        hp = self.setup.source.arch.hp
        plan = self.plan(no_neurons(hp.n_layer, hp.n_ff), Groups(hp.n_layer, True))
        return plan.bytes_by_space()[self.device.space].working

    # -- what goes there -------------------------------------------------------------------------

    def place(self, fixed: NeuronSplit | None = None) -> tuple[Setup, str]:
        """Place the model; what it came to, in words.

        fixed: a split to use as it is. Raises BudgetError with the figures when attention, or the
        fixed split, does not fit; what the solver raises.
        """
        hp = self.setup.source.arch.hp
        none = no_neurons(hp.n_layer, hp.n_ff)
        groups = self._groups(none)
        split, how = (fixed, "as given") if fixed is not None else self._choose(groups)
        placed, limit = self.placed(split, groups), self.limit
        total = self.needs(self._plan(placed))
        if total > limit:
            raise BudgetError(
                f"{self._said()}: the split's {sum(split.n_gpu)} neurons take "
                f"{human_bytes(total)} with all else there, {human_bytes(total - limit)} more"
            )
        n, every = sum(split.n_gpu), split.n_ff * split.n_layer
        return placed, (
            f"{self.device.space}: attention, {groups.predictors} of {hp.n_layer} predictors, "
            f"{'the' if groups.output else 'not the'} output head, {n} of {every} neurons "
            f"({100 * n / every:.1f} %, {min(split.n_gpu)} to {max(split.n_gpu)} a layer; {how}): "
            f"{human_bytes(total)} of {human_bytes(limit)}"
        )

    def _groups(self, none: NeuronSplit) -> Groups:
        plan = self.plan(none, Groups())
        left = self.limit - self.needs(plan)
        if left < 0:
            raise BudgetError(self._too_small(plan, -left))
        groups = Groups()
        if self._predicts:
            groups = Groups(predictors=self._predictors(left))
        with_output = replace(groups, output=True)
        return with_output if self.needs(self.plan(none, with_output)) <= self.limit else groups

    @property
    def _predicts(self) -> bool:
        run = sparse_run(self.setup)
        return run is not None and run.mode == "predict"

    def _predictors(self, left: int) -> int:
        """The first layers whose predictors take no more than `left` bytes."""
        source = self.setup.source
        memory = memory_of(self.device)
        for i in range(source.arch.hp.n_layer):
            for part in ("fc1", "fc2"):
                w = source.weights[f"blk.{i}.{part}.weight"]
                left -= round_up(padded_bytes(w.dtype, w.shape, memory.row_unit), memory.unit)
            if left < 0:
                return i
        return source.arch.hp.n_layer

    def _choose(self, groups: Groups) -> tuple[NeuronSplit, str]:
        """The solver's split for what is left."""

        def plan_for(split: NeuronSplit) -> Plan:
            return self.plan(split, groups)

        try:
            placed = place_neurons(
                self.setup.source, self.limit - GROWTH_BYTES, self.device, self.host, plan_for,
                not self._predicts, self.setup.options.n_threads or None,
            )  # fmt: skip
        except NoStatsError:
            return self._first_that_fit(groups), (
                "the first of each layer, for nobody counted how often each fires: "
                "`gguflow sparse stats`"
            )
        return placed.split, f"split: {placed.path}"

    def _first_that_fit(self, groups: Groups) -> NeuronSplit:
        """As many of every layer's first neurons as fit."""
        hp = self.setup.source.arch.hp

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
        if budget := self.setup.options.vram_budget:
            return f"`vram_budget` {budget / 2**30:.3g} GiB"
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
            f"{human_bytes(GROWTH_BYTES)}; raise it or lower `n_ctx` or `n_ubatch`"
        )
