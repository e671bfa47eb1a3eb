"""Engine: requests in, tokens out, all sequences of a model together.

engine = Engine(model, n_seqs=16)
ids = [engine.add(Request(model.tokenizer.encode(p), max_tokens=64)) for p in prompts]
while engine.has_work:
    for token in engine.step():
        print(token.request, token.id, token.finish)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.ahead import Ahead
from gguflow.engine.compile.types import HOST_SPACE
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import token_ids
from gguflow.engine.sampling import SamplerRows, seed_of

from .pages import OutOfPages
from .request import Finish, Job, Request, RequestId, Token
from .rows import Piece, Rows, rows_of, single_rows
from .runner import Runner, Sampling
from .scheduler import Batch, Scheduler

if TYPE_CHECKING:
    from gguflow.engine.model import Model

LEAST_AHEAD = 3  # steps that are worth starting to run ahead
MOST_AHEAD = 128  # for which pages are set aside at a time


@dataclass
class EngineStats:
    """Since the engine was made. n_prompt: tokens of prompts computed, those of requests that gave
    their pages back again included; n_found: those that were in the cache already. n_pages,
    n_available: of the KV cache by group, those available being free or wanted by nobody now."""

    n_steps: int
    n_prompt: int
    n_found: int
    n_generated: int
    n_preempted: int
    n_running: int
    n_waiting: int
    n_pages: dict[str, int]
    n_available: dict[str, int]


class Engine:
    """Continuous batching over a model (see `scheduler`), with pages and prefixes shared (`kv`).

    A request's tokens are those it gets alone: they depend on its tokens and settings, not on what
    runs beside it. One thread at a time calls `step`; `add`, `cancel` and `has_work` may be called
    from any thread at any time. An accepted request ends with a token that says why.
    """

    def __init__(
        self,
        model: Model,
        n_seqs: int | None = None,
        n_cache: int | None = None,
        profile: Profile | None = None,
        prompts_first: bool = False,
    ) -> None:
        """n_seqs, n_cache: as in `Options`, instead of the model's. prompts_first: nobody generates
        while there are prompts to compute, which gives the most tokens a second and the longest
        pauses."""
        o = model.options
        n_seqs, n_cache = n_seqs or o.n_seqs, o.n_cache if n_cache is None else n_cache
        if (n_seqs, n_cache) != (o.n_seqs, o.n_cache):
            model = model.with_options(n_seqs=n_seqs, n_cache=n_cache)
        self.model = model
        self._runner = Runner(model, profile)
        self._kv = self._runner.kv
        self._scheduler = Scheduler(self._kv, model.options.n_ubatch, prompts_first)
        self._samplers = SamplerRows(model.options.n_seqs)
        self._jobs: dict[RequestId, Job] = {}
        self._ids = count()
        self._lock = threading.Lock()
        self._incoming: deque[Job] = deque()
        self._cancelled: deque[RequestId] = deque()
        self._ahead: Ahead | None = None
        self._aboard: list[Job] = []  # whose tokens the steps on their way make,
        self._aboard_seqs = np.zeros(0, np.int64)  # and their numbers in the cache
        self._on_host = all(b.space == HOST_SPACE for b in model.backends.values())
        self._n_steps = self._n_prompt = self._n_generated = 0

    # -- from any thread -------------------------------------------------------------------------

    def add(self, request: Request) -> RequestId:
        """Accept a request. Raises ContextError for a prompt longer than the context, ValueError
        for one without tokens or with ids that do not exist, TypeError for what are no ids."""
        ids = token_ids(request.ids)
        self.model.check_prompt(ids)
        if request.max_tokens < -1:
            raise ValueError(f"max_tokens {request.max_tokens}: expected -1 or more")
        with self._lock:
            seed, n_ctx = seed_of(request.settings), self.model.options.n_ctx
            job = Job(next(self._ids), request, ids, seed, n_ctx)
            self._jobs[job.id] = job
            self._incoming.append(job)
        return job.id

    def cancel(self, id: RequestId) -> None:
        """End a request with the next step; nothing happens when it has ended already."""
        self._cancelled.append(id)

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._jobs)

    @property
    def stats(self) -> EngineStats:
        """Counts; exact between steps."""
        pools, s = self._kv.pools, self._scheduler
        return EngineStats(
            self._n_steps,
            self._n_prompt,
            s.n_found,
            self._n_generated,
            s.n_preempted,
            len(s.running),
            len(s.waiting) + len(self._incoming),
            {name: p.n_pages for name, p in pools.items()},
            {name: p.n_available for name, p in pools.items()},
        )

    # -- from one --------------------------------------------------------------------------------

    def step(self) -> list[Token]:
        """One run of one plan: at most one token for every request, and those that end without one.

        Should it raise, the requests are as before it and the next step does the same again.
        """
        done: list[Token] = []
        self._take_in(done)
        if self._ahead is not None:
            self._step_ahead(done)
            return done
        batch = self._scheduler.next()
        if not batch.singles and not batch.chunks:
            return done
        self._n_steps += 1
        if not batch.chunks and self._runs_ahead(batch):
            self._step_ahead(done)
        else:
            self._run(batch, done)
        return done

    def _take_in(self, done: list[Token]) -> None:
        """Requests that have come and cancellations since the last step."""
        while self._incoming:
            job = self._incoming.popleft()
            self._scheduler.add(job)
            if job.request.max_tokens == 0:
                self._end(job, None, "length", done)
        while self._cancelled:
            cancelled = self._jobs.get(self._cancelled.popleft())
            if cancelled is not None:
                self._end(cancelled, None, "cancel", done)
        if self._ahead is not None and self._scheduler.may_admit:
            self._ahead.stop()

    def _end(self, job: Job, token: int | None, finish: Finish, done: list[Token]) -> None:
        index = job.n_generated - (token is not None)
        done.append(Token(job.id, token, index, finish))
        self._scheduler.remove(job)
        job.is_over = True
        if self._ahead is not None:
            self._ahead.stop()
        with self._lock:
            del self._jobs[job.id]

    # -- runs ------------------------------------------------------------------------------------

    def _run(self, batch: Batch, done: list[Token]) -> None:
        singles, chunks = batch.singles, batch.chunks
        sampled = [*singles, *(job for job, n in chunks if n == job.n_new)]
        for job in sampled:
            if not job.has_sampler:
                settings = job.request.settings
                self._samplers.set(_seq(job), settings, job.seed, job.tokens, job.n_generated)
                job.has_sampler = True
        seqs = np.array([job.seq for job in sampled], np.int64)
        if chunks:
            pieces = [Piece(_seq(job), job.tokens[-1:], 1, True) for job in singles]
            for job, n in chunks:
                ids = job.tokens[job.n_rows : job.n_rows + n]
                pieces.append(Piece(_seq(job), ids, int(n == job.n_new)))
            rows = rows_of(self._kv, pieces)
        else:
            rows = self._single_rows(singles, seqs)
        results = self._runner.run(rows, self._sampling(seqs) if sampled else None)
        self._advance(singles)
        for job, n in chunks:
            self._kv.advance(_seq(job), job.tokens[job.n_rows : job.n_rows + n])
            job.n_rows += n
            self._n_prompt += n
        if sampled:
            broken = self._broken(sampled, results)
            self._accept(sampled, seqs, results[-1], done, broken)

    def _single_rows(self, jobs: Sequence[Job], seqs: np.ndarray) -> Rows:
        tokens, pos = ([job.tokens[-1] for job in jobs], [job.n_rows for job in jobs])
        return single_rows(seqs, np.array(tokens), np.array(pos))

    def _advance(self, jobs: Sequence[Job]) -> None:
        """The row of a generated token was computed for each of these."""
        advance = self._kv.advance
        for job in jobs:
            advance(_seq(job), job.tokens[-1:], True)
            job.n_rows += 1

    def _sampling(self, seqs: np.ndarray) -> Sampling:
        s = self._samplers
        return Sampling(s.settings[seqs], s.rng[seqs], s.history[seqs])

    def _broken(self, jobs: Sequence[Job], results: Sequence[np.ndarray]) -> set[RequestId]:
        """Requests whose first logits are not finite. Those of a device are looked at once: what is
        wrong with a model shows in its first ones, and bringing them all over takes long."""
        new = [(i, j) for i, j in enumerate(jobs) if not j.n_generated]
        if not new or not (self._on_host or self._n_generated == 0):
            return set()
        logits = results[-2]
        return {j.id for i, j in new if not np.isfinite(logits[i]).all()}

    def _accept(
        self,
        jobs: Sequence[Job],
        seqs: np.ndarray,
        tokens: np.ndarray,
        done: list[Token],
        broken: Set[RequestId] = frozenset(),
    ) -> None:
        """A token for each of some jobs; those that have ended meanwhile get none."""
        self._samplers.accept(seqs, tokens)
        for job, token in zip(jobs, tokens.tolist(), strict=True):
            if job.is_over:
                continue
            if job.id in broken:
                self._end(job, None, "error", done)
                continue
            job.tokens.append(token)
            self._n_generated += 1
            if token in job.request.stop:
                self._end(job, token, "stop", done)
            elif len(job.tokens) >= job.n_most:
                self._end(job, token, "length", done)
            else:
                done.append(Token(job.id, token, len(job.tokens) - job.n_prompt - 1))

    # -- running ahead ---------------------------------------------------------------------------

    def _runs_ahead(self, batch: Batch) -> bool:
        """Whether the device makes the next tokens by itself; it is started if it can."""
        jobs = batch.singles
        if self._runner.profile is not None or len(jobs) < len(self._scheduler.running):
            return False
        if not self._runner.has_loop(len(jobs)):
            return False
        most = min(MOST_AHEAD, *(job.n_most - len(job.tokens) for job in jobs))
        seqs = np.array([job.seq for job in jobs], np.int64)
        rows = self._single_rows(jobs, seqs)
        while most >= LEAST_AHEAD and not self._grown(jobs, most):
            most //= 2
        if most < LEAST_AHEAD:
            return False
        loop = self._runner.write(rows, self._sampling(seqs)).token_loop
        assert loop is not None
        self._ahead, self._aboard, self._aboard_seqs = Ahead(loop, most), [*jobs], seqs
        return True

    def _grown(self, jobs: Sequence[Job], n: int) -> bool:
        """Pages for n more tokens of every job."""
        try:
            for job in jobs:
                self._kv.grow(_seq(job), n)
        except OutOfPages:
            for job in jobs:
                self._kv.shrink(_seq(job))
                self._kv.grow(_seq(job), 1)
            return False
        return True

    def _step_ahead(self, done: list[Token]) -> None:
        """Take the tokens of one step that was on its way. When a job ends or another may begin no
        more steps are started, but those that are on their way are taken."""
        ahead, self._ahead = self._ahead, None  # should this be interrupted
        assert ahead is not None
        tokens = ahead.next()[: len(self._aboard)]
        self._ahead = ahead
        self._advance([job for job in self._aboard if not job.is_over])
        self._accept(self._aboard, self._aboard_seqs, tokens, done)
        alive = [job for job in self._aboard if not job.is_over]
        if ahead.is_over or not alive:
            self._ahead = None
            for job in alive:
                self._kv.shrink(_seq(job))


def _seq(job: Job) -> int:
    assert job.seq is not None
    return job.seq
