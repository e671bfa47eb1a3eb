"""Tokens a second for n cards and m machines: plans, constants and pipelines put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from gguflow.engine.compile.shares import shares
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.load import ModelSource
from gguflow.engine.load.offload import RESERVE
from gguflow.engine.ops.all_reduce import DEVICES
from gguflow.engine.options import OptionError

from .cost import hop_seconds, layer_seconds, wire_seconds
from .machine import Machine
from .pipeline import round_seconds
from .plans import Plans
from .replicas import Service, arrivals, run_replicas
from .simulate import run_pipeline
from .work import RunWork

Split = Literal["layer", "tensor"]
LOAD = 0.8  # of what replicas can do at most comes to them
REQUESTS = 60  # a replica's, of a simulation
GENERATED = 128  # tokens of a request


@dataclass(frozen=True)
class Question:
    """What is asked. cards: of a machine, split as `split` says. sequences: at once, of each
    replica or pipeline. n_prompt: tokens of a prompt, in pieces of n_ubatch. n_depth: tokens in the
    context when tokens are generated."""

    cards: Sequence[int] = (1,)
    machines: Sequence[int] = (1,)
    split: Split = "tensor"
    sequences: Sequence[int] = (1,)
    n_prompt: int = 512
    n_ubatch: int = 512
    n_depth: int = 64


@dataclass(frozen=True)
class Forecast:
    """A row. how: "one card", "tensor", "layer", "pipeline" or "replicas", and whether stages work
    in turn, as they do today, or overlap. test: "pp512", "tg", or "served". speed: tokens a second
    of all machines. bubbles: the share of time that stages wait. gib: of the fullest card. first:
    seconds to the first token of half and of 95 % of requests, of replicas under load."""

    cards: int
    machines: int
    how: str
    test: str
    sequences: int
    speed: float
    bubbles: float
    gib: float
    fits: bool
    first: tuple[float, float] | None = None


def forecast(source: ModelSource, m: Machine, q: Question) -> tuple[list[Forecast], list[str]]:
    """Rows, and what the engine notes of its plans. Raises OptionError where a split has more parts
    than there are layers, or more than sums are exchanged between."""
    rows: list[Forecast] = []
    notes: dict[str, None] = {}
    for cards in q.cards:
        _check(source, q, cards)
        n_ctx = max(q.n_prompt + GENERATED, q.n_depth + 1)
        # Layers on several cards are those of one card's plan, cut between two of them.
        plans = Plans(source, cards if q.split == "tensor" else 1, n_ctx, max(q.sequences))
        if cards > 1 and q.split == "tensor":
            notes |= dict.fromkeys(f"{cards} cards: {note}" for note in plans.notes)
        host = _Host(plans, m, q, cards)
        for machines in q.machines:
            rows += host.rows(machines)
    return rows, list(notes)


def _check(source: ModelSource, q: Question, cards: int) -> None:
    n_parts = source.arch.hp.n_layer + 1
    if q.split == "tensor" and cards > DEVICES:
        raise OptionError(f"cards {cards}: `split_mode=tensor` is for {DEVICES} devices at most")
    if q.split == "layer" and cards > n_parts:
        raise OptionError(f"cards {cards}: {n_parts - 1} layers and the output have no more parts")


class _Host:
    """Some cards of a machine."""

    def __init__(self, plans: Plans, m: Machine, q: Question, cards: int) -> None:
        self._plans, self._m, self._q, self._cards = plans, m, q, cards
        self._parts = plans.n_layer + 1
        self._in_layers = q.split == "layer" and cards > 1

    def rows(self, machines: int) -> Iterator[Forecast]:
        if machines == 1:
            name = "one card" if self._cards == 1 else self._q.split
            yield from self._staged(self._cards if self._in_layers else 1, machines, name)
            return
        yield from self._replicas(machines)
        n_stages = machines * (self._cards if self._in_layers else 1)
        if n_stages <= self._parts:
            yield from self._staged(n_stages, machines, "pipeline")

    # -- pipelines, of one stage too ---------------------------------------------------------------

    def _staged(self, n_stages: int, machines: int, name: str) -> Iterator[Forecast]:
        q, bounds = self._q, shares(self._parts, (1.0,) * n_stages)
        for overlap in (False, True) if n_stages > 1 else (False,):
            how = name if n_stages == 1 else f"{name}, {'overlapped' if overlap else 'in turn'}"
            for test, n in (("pp", 1), *(("tg", n) for n in q.sequences)):
                if test == "pp" and not q.n_prompt:
                    continue
                staged = self._prompt if test == "pp" else self._tokens
                speed, idle = staged(bounds, machines, n, overlap)
                test = f"pp{q.n_prompt}" if test == "pp" else test
                yield self._row(machines, how, test, n, speed, idle, bounds)

    def _prompt(
        self, bounds: Sequence[int], machines: int, n: int, overlap: bool
    ) -> tuple[float, float]:
        """Tokens a second of a prompt, and the bubbles."""
        q, n_stages = self._q, len(bounds) - 1
        pieces, hop = [], 0.0
        for start in range(0, q.n_prompt, q.n_ubatch):
            size = min(q.n_ubatch, q.n_prompt - start)
            run = self._plans.piece(size, start, start + size == q.n_prompt)
            pieces.append(self._stages(run, bounds))
            hop = max(hop, self._hop(run, machines))
        if overlap:
            passed = run_pipeline(pieces, hop)
            return q.n_prompt / passed.seconds, 1 - sum(passed.busy) / n_stages
        worked = sum(map(sum, pieces))
        seconds = worked + len(pieces) * hop * (n_stages - 1)
        return q.n_prompt / seconds, 1 - worked / seconds / n_stages

    def _tokens(
        self, bounds: Sequence[int], machines: int, n: int, overlap: bool
    ) -> tuple[float, float]:
        """Tokens a second of n sequences, in as many groups as there are stages if they overlap."""
        n_stages = len(bounds) - 1
        groups = min(n_stages, n) if overlap else 1
        size = -(-n // groups)
        groups = -(-n // size)
        run = self._plans.decode(size, self._q.n_depth)
        stages = self._stages(run, bounds)
        seconds = round_seconds(stages, groups, self._hop(run, machines))
        return n / seconds, 1 - groups * sum(stages) / seconds / n_stages

    def _stages(self, run: RunWork, bounds: Sequence[int]) -> list[float]:
        """Seconds of each stage; what comes before the layers is the first one's."""
        before, *times = layer_seconds(run, self._m)
        stages = [sum(times[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
        stages[0] += before
        return stages

    def _hop(self, run: RunWork, machines: int) -> float:
        between = wire_seconds if machines > 1 else hop_seconds
        return between(run.crossing, self._m)

    # -- replicas ----------------------------------------------------------------------------------

    def _replicas(self, machines: int) -> Iterator[Forecast]:
        """Each machine holds the whole model and steps by itself; then the same under load."""
        stages = self._cards if self._in_layers else 1
        bounds = shares(self._parts, (1.0,) * stages)
        for n in self._q.sequences:
            speed, idle = self._tokens(bounds, 1, n, False)
            yield self._row(machines, "replicas", "tg", n, machines * speed, idle, bounds)
        n, prompt = max(self._q.sequences), 0.0
        if self._q.n_prompt:
            prompt = self._q.n_prompt / self._prompt(bounds, 1, 1, False)[0]
        steps = {k: k / self._tokens(bounds, 1, k, False)[0] for k in _some(n)}
        service = Service(lambda k: _between(steps, k), prompt, GENERATED, n)
        rate = LOAD * machines * service.capacity() / GENERATED
        served = run_replicas(machines, service, arrivals(max(REQUESTS, 4 * n) * machines, rate))
        row = self._row(machines, f"replicas, {LOAD:.0%} load", "served", n,
                        served.tokens, 0.0, bounds)  # fmt: skip
        yield replace(row, first=(served.first_at(0.5), served.first_at(0.95)))

    def _row(
        self, machines: int, how: str, test: str, n: int, speed: float, idle: float,
        bounds: Sequence[int],
    ) -> Forecast:  # fmt: skip
        needed = self._plans.bytes_needed(bounds, n)
        fits = needed + RESERVE <= self._m.memory
        return Forecast(self._cards, machines, how, test, n, speed, idle, needed / (1 << 30), fits)


def _some(n: int) -> list[int]:
    """Sizes of batches that are planned: 1, 2, 4, ... and n."""
    return sorted({n, *(1 << i for i in range(n.bit_length()) if 1 << i <= n)})


def _between(steps: dict[int, float], k: int) -> float:
    """Seconds of a step of k sequences, between the two planned sizes next to it."""
    sizes = sorted(steps)
    return float(np.interp(k, sizes, [steps[size] for size in sizes]))
