"""Session: a model in use. Holds the KV cache, lowered plans and the sampler; steps tokens."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.backends.base import Buffer
from gguflow.engine.compile import Plan
from gguflow.engine.graph import Role
from gguflow.engine.plan_key import PlanKey, step_key
from gguflow.engine.profile import Profile
from gguflow.engine.runtime import BoundPlan, bind
from gguflow.engine.sampling import SamplerSettings, SamplerState
from gguflow.models.base import ModelError

if TYPE_CHECKING:
    from gguflow.engine.model import Model

LEAST_AHEAD = 3  # steps left that are worth starting to run ahead
PLAN_CACHE = 8  # plans kept by a model, and lowered ones by a session


class ContextError(ValueError):
    """More tokens than the context holds."""


def token_ids(ids: Iterable[int]) -> list[int]:
    """Token ids as a list of ints. Raises TypeError for what is not one row of whole numbers."""
    try:
        return [index(t) for t in ids]
    except TypeError:
        raise TypeError("token ids must be whole numbers, in a list or a 1-D array") from None


@dataclass
class Timings:
    """Tokens and seconds of a generation.

    n_prompt: tokens computed, without those the cache held. The first token comes out of the
    prompt's last run, so N generated tokens take N - 1 runs.
    """

    n_prompt: int = 0
    prompt_s: float = 0.0
    n_generated: int = 0
    n_runs: int = 0
    generate_s: float = 0.0

    def add(self, other: Timings) -> None:
        """Add another generation's."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


class Session:
    """One sequence over a model: its KV cache, the tokens in it, and lowered plans.

    Generations that take turns on one session, on one thread or several, each get their own text;
    every change of turn computes again what their sequences do not share. Give each a session to
    save that.
    """

    def __init__(self, model: Model, profile: Profile | None = None) -> None:
        self.model = model
        self.profile = profile
        self.tokens: list[int] = []  # what the KV cache holds
        self.timings = Timings()
        self._lock = threading.RLock()
        self._turn: SamplerState | None = None  # the generation that was the last to step
        self._ahead: Ahead | None = None  # steps of that generation that are on their way
        self._plans: OrderedDict[PlanKey, BoundPlan] = OrderedDict()
        self._states: dict[str, Buffer] = {}
        self._arenas: dict[str, Buffer] = {}
        self._reserve(model.plan(step_key(model.options.n_ubatch, "last", True)))

    # -- plans -----------------------------------------------------------------------------------

    def _reserve(self, plan: Plan) -> None:
        """Allocate states, and an arena that fits; plans lowered for a smaller one are dropped."""
        by_space = {b.space: b for b in self.model.backends.values()}
        for t in plan.leaves(Role.STATE):
            if t.name not in self._states:
                self._states[t.name] = by_space[plan.space_of(t)].alloc(t.nbytes)
        for space, arena in plan.arenas.items():
            if space not in self._arenas or self._arenas[space].nbytes < arena.nbytes:
                self._arenas[space] = by_space[space].alloc(max(arena.nbytes, 1))
                self._plans.clear()

    def bound_plan(self, n_tokens: int, outputs: str, sample: bool) -> BoundPlan:
        """The lowered plan for this many tokens, from the cache when it is there."""
        key = step_key(n_tokens, outputs, sample)
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        plan = self.model.plan(key)
        self._reserve(plan)
        o, w = self.model.options, self.model.weights
        threads = (o.n_threads_batch if n_tokens > 1 else o.n_threads) or o.n_threads or None
        bound = bind(
            plan, self.model.backends, w.buffers, w.packed, self._states, self._arenas, threads
        )
        self._plans[key] = bound
        while len(self._plans) > PLAN_CACHE:
            self._plans.popitem(last=False)
        return bound

    # -- stepping --------------------------------------------------------------------------------

    def step(
        self, ids: Sequence[int], outputs: str = "none", sampler: SamplerState | None = None
    ) -> Sequence[np.ndarray]:
        """Append tokens to the cache in one run of one plan; returns the plan's outputs.

        outputs: "last", "all" or "none" asks for logits; with a sampler the last output is the
        chosen token. The arrays are overwritten by the next run. Raises ContextError when full.
        """
        began = time.perf_counter_ns()
        n_past, n = len(self.tokens), len(ids)
        self._turn = self._ahead = None
        if n_past + n > self.model.options.n_ctx:
            raise ContextError(
                f"{n_past + n} tokens do not fit the context of "
                f"{self.model.options.n_ctx}; raise `n_ctx`"
            )
        bound = self.bound_plan(n, outputs, sampler is not None)
        self._write(bound, ids, sampler)
        if self.profile is None:
            bound.run()
        else:
            rows, spans = bound.run_timed()
            self.profile.add_step(
                "decode" if n == 1 else "prefill",
                n,
                rows,
                spans,
                time.perf_counter_ns() - began,
                n_past,
            )
        self.tokens.extend(ids)
        return bound.outputs

    def _write(self, bound: BoundPlan, ids: Sequence[int], sampler: SamplerState | None) -> None:
        """A plan's inputs, for tokens that come next."""
        n_past, n, inputs = len(self.tokens), len(ids), bound.inputs
        pos = np.arange(n_past, n_past + n)
        inputs["tokens"][:] = ids
        inputs["pos"][:] = pos
        inputs["seq"][:] = 0
        for group in self.model.cache_size().n_pages:
            inputs[f"rows.{group}"][:] = pos
            if f"table.{group}" in inputs:
                inputs[f"table.{group}"][:] = np.arange(inputs[f"table.{group}"].shape[1])
        if "out.ids" in inputs:
            inputs["out.ids"][:] = n - 1
            inputs["out.pos"][:] = n_past + n - 1
            inputs["out.seq"][:] = 0
        if sampler is not None:
            inputs["sampler.settings"][:] = sampler.vector
            inputs["sampler.rng"][:] = sampler.rng
            inputs["sampler.history"][:] = sampler.history

    @property
    def is_full(self) -> bool:
        """Whether the context has no room for another token."""
        return len(self.tokens) >= self.model.options.n_ctx

    def rewind(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens."""
        self._turn = self._ahead = None
        del self.tokens[n_tokens:]

    def prefill(
        self, ids: Sequence[int], sampler: SamplerState | None, outputs: str = "last"
    ) -> Sequence[np.ndarray]:
        """Append a prompt in ubatches; outputs as in `step`, of the last ubatch only."""
        n_ubatch = self.model.options.n_ubatch
        for i in range(0, len(ids), n_ubatch):
            part = ids[i : i + n_ubatch]
            last = i + n_ubatch >= len(ids)
            result = self.step(part, outputs if last else "none", sampler if last else None)
        return result

    def generate(
        self,
        prompt: Sequence[int],
        max_tokens: int = -1,
        settings: SamplerSettings | None = None,
        stop: Sequence[int] | set[int] = (),
    ) -> Iterator[int]:
        """Yield token ids after `prompt`, which is the whole sequence from its start.

        What the cache already holds of it is reused. Ends at `max_tokens`, at a stop token (not
        yielded), or when the context is full. Raises ContextError when the prompt does not fit.
        """
        ids = token_ids(prompt)
        self.model.check_prompt(ids)
        if max_tokens < -1:
            raise ValueError(f"max_tokens {max_tokens}: expected -1 or more")
        self.timings = timings = Timings()
        if max_tokens == 0:
            return
        sampler = SamplerState(settings or SamplerSettings())
        for t in ids:
            sampler.accept(t)
        clock = time.perf_counter
        began = clock()
        token, timings.n_prompt = self._next(ids, sampler, max_tokens)
        timings.prompt_s = clock() - began
        began = clock()
        n = 0
        while token not in stop:
            n += 1
            # Set before the yield: a caller that stops here leaves true timings behind.
            timings.n_generated = n
            timings.n_runs = n - 1
            timings.generate_s = clock() - began
            yield token
            if n == max_tokens or len(ids) >= self.model.options.n_ctx:
                break
            sampler.accept(token)
            sampler.advance()
            ids.append(token)
            token, _ = self._next(ids, sampler, max_tokens - n)

    def _next(self, ids: Sequence[int], sampler: SamplerState, most: int) -> tuple[int, int]:
        """The token after a sequence, and how many tokens had to be computed: one, unless the
        generation is new or something else used the session since its last step.

        most: tokens the generation may still ask for, this one included; no limit when negative.
        """
        with self._lock:
            if self._turn is sampler and self._runs_ahead(ids, sampler, most):
                assert self._ahead is not None
                self._turn = None  # should this be interrupted
                token = self._ahead.next()
                self.tokens.append(ids[-1])
                self._turn = sampler
                return token, 1
            if self._turn is not sampler:
                keep, common = 0, min(len(self.tokens), len(ids) - 1)
                while keep < common and self.tokens[keep] == ids[keep]:
                    keep += 1
                self.rewind(keep)
            new = ids[len(self.tokens) :]
            result = self.prefill(new, sampler)
            if self._turn is not sampler and not np.isfinite(result[0]).all():
                raise ModelError(
                    f"{self.model.source.path}: the logits are not finite; the weights hold NaN or "
                    "infinity, or values too large to multiply"
                )
            self._turn = sampler
            return int(result[-1][0]), len(new)

    def _runs_ahead(self, ids: Sequence[int], sampler: SamplerState, most: int) -> bool:
        """Whether the device makes the tokens by itself; it is started if it can."""
        if self.profile is not None:  # which has a record for every step
            return False
        if self._ahead is not None and not self._ahead.is_over:
            return True
        n_past = len(self.tokens)
        room = self.model.options.n_ctx - n_past
        most = min(room, most) if most >= 0 else room
        if len(ids) != n_past + 1 or most < LEAST_AHEAD:
            return False
        bound = self.bound_plan(1, "last", True)
        if bound.token_loop is None:
            return False
        self._write(bound, ids[-1:], sampler)
        self._ahead = Ahead(bound.token_loop, n_past, most)
        return True

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Logits after every token of a new sequence: float32 [n_tokens, n_vocab]."""
        ids = token_ids(ids)
        self.model.check_ids(ids)
        out = [np.zeros((0, self.model.hp.n_vocab), np.float32)]
        n_ubatch = self.model.options.n_ubatch
        with self._lock:
            self.rewind(0)
            for i in range(0, len(ids), n_ubatch):
                out.append(self.step(ids[i : i + n_ubatch], "all")[0].copy())
        return np.concatenate(out)
