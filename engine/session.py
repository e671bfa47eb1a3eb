"""Session: one sequence over a model. Steps tokens, reuses what the KV cache holds, generates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import ContextError, token_ids
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.sampling import SamplerSettings, SamplerState
from gguflow.engine.serving.pages import OutOfPages
from gguflow.engine.serving.rows import Piece, rows_of
from gguflow.engine.serving.runner import Runner, Sampling
from gguflow.models.base import ModelError

if TYPE_CHECKING:
    from gguflow.engine.model import Model

LEAST_AHEAD = 3  # steps left that are worth starting to run ahead


def sampling_of(sampler: SamplerState) -> Sampling:
    """The operands of a run with one output."""
    return Sampling(sampler.vector[None], sampler.rng[None], sampler.history[None])


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
    """One sequence over a model, with a runner and a KV cache of its own.

    Generations that take turns on one session, on one thread or several, each get their own text;
    every change of turn computes again what their sequences do not share. Give each a session to
    save that.
    """

    def __init__(self, model: Model, profile: Profile | None = None) -> None:
        o = model.options
        if o.n_seqs > 1 or o.n_cache > o.n_ctx:
            model = model.with_options(n_seqs=1, n_cache=0)
        self.model = model
        self.timings = Timings()
        self._runner = Runner(model, profile)
        self._kv = self._runner.kv
        self._seq = self._kv.create()
        self._gone: list[int] = []  # tokens at the end whose rows a sliding window gave back
        self._lock = threading.RLock()
        self._turn: SamplerState | None = None  # the generation that was the last to step
        self._ahead: Ahead | None = None  # steps of that generation that are on their way

    @property
    def profile(self) -> Profile | None:
        """What every step is recorded in."""
        return self._runner.profile

    @profile.setter
    def profile(self, profile: Profile | None) -> None:
        self._runner.profile = profile

    @property
    def tokens(self) -> list[int]:
        """The sequence so far."""
        return [*self._kv.tokens(self._seq), *self._gone]

    @property
    def n_tokens(self) -> int:
        return self._kv.length(self._seq) + len(self._gone)

    def bound_plan(self, n_tokens: int, outputs: str, sample: bool) -> BoundPlan:
        """The lowered plan that runs this many tokens."""
        single, every = n_tokens == 1, outputs == "all"
        n_out = {"last": 1, "all": n_tokens, "none": 0}[outputs]
        n_chunk = 0 if single else n_tokens
        key = self._runner.buckets.key(int(single), n_chunk, 1, n_out, every, sample)
        return self._runner.plan(key)

    # -- stepping --------------------------------------------------------------------------------

    def step(
        self, ids: Sequence[int], outputs: str = "none", sampler: SamplerState | None = None
    ) -> Sequence[np.ndarray]:
        """Append tokens to the cache in one run of one plan; returns the plan's outputs.

        outputs: "last", "all" or "none" asks for logits; with a sampler the last output is the
        chosen token. The arrays are overwritten by the next run. Raises ContextError when full.
        """
        n_past, n = self.n_tokens, len(ids)
        self._turn = self._ahead = None
        if n_past + n > self.model.options.n_ctx:
            raise ContextError(
                f"{n_past + n} tokens do not fit the context of "
                f"{self.model.options.n_ctx}; raise `n_ctx`"
            )
        if not n:
            raise ValueError("no tokens to run")
        if self._gone:
            gone, self._gone = self._gone, []
            self.prefill(gone, None, "none")
        sampling = None if sampler is None else sampling_of(sampler)
        self._kv.grow(self._seq, n)
        result: Sequence[np.ndarray]
        if n == 1:
            result = self._runner.run_one(self._seq, ids[0], sampling, outputs != "none")
        else:
            n_out = {"last": 1, "all": n, "none": 0}[outputs]
            rows = rows_of(self._kv, [Piece(self._seq, ids, n_out)])
            result = self._runner.run(rows, sampling, outputs == "all")
        self._kv.advance(self._seq, ids, n == 1)
        return result

    @property
    def is_full(self) -> bool:
        """Whether the context has no room for another token."""
        return self.n_tokens >= self.model.options.n_ctx

    def rewind(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens."""
        self._turn = self._ahead = None
        left = self.tokens[:n_tokens]
        self._gone = left[self._kv.trim(self._seq, len(left)) :]

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
                token = int(self._ahead.next()[0])
                self._kv.advance(self._seq, ids[-1:], True)
                self._turn = sampler
                return token, 1
            if self._turn is not sampler:
                self._change_to(ids)
            new = ids[self.n_tokens :]
            result = self.prefill(new, sampler)
            if self._turn is not sampler and not np.isfinite(result[0]).all():
                raise ModelError(
                    f"{self.model.source.path}: the logits are not finite; the weights hold NaN or "
                    "infinity, or values too large to multiply"
                )
            self._turn = sampler
            return int(result[-1][0]), len(new)

    def _change_to(self, ids: Sequence[int]) -> None:
        """Keep what the cache holds of another sequence: of the one before, or of earlier ones."""
        before = self.tokens
        keep, common = 0, min(len(before), len(ids) - 1)
        while keep < common and before[keep] == ids[keep]:
            keep += 1
        if self._kv.n_findable(ids) <= keep:
            self.rewind(keep)
            return
        self._turn = self._ahead = None
        self._gone = []
        self._kv.free(self._seq)
        self._seq = self._kv.create(ids)

    def _runs_ahead(self, ids: Sequence[int], sampler: SamplerState, most: int) -> bool:
        """Whether the device makes the tokens by itself; it is started if it can."""
        if self.profile is not None:  # which has a record for every step
            return False
        if self._ahead is not None and not self._ahead.is_over:
            return True
        n_past = self.n_tokens
        room = self.model.options.n_ctx - n_past
        most = min(room, most) if most >= 0 else room
        if len(ids) != n_past + 1 or self._gone or most < LEAST_AHEAD:
            return False
        if self.bound_plan(1, "last", True).token_loop is None:
            return False
        while not self._grown(most):
            most //= 2
            if most < LEAST_AHEAD:
                return False
        bound = self._runner.write_one(self._seq, ids[-1], sampling_of(sampler))
        assert bound.token_loop is not None
        self._ahead = Ahead(bound.token_loop, most)
        return True

    def _grown(self, n: int) -> bool:
        try:
            self._kv.grow(self._seq, n)
        except OutOfPages:  # a window's pages are fewer than the context's
            return False
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
