"""Engine: requests in, tokens out, all sequences of a model together.

engine = Engine(model, n_seqs=16)
ids = [engine.add(Request(model.tokenizer.encode(p), max_tokens=64)) for p in prompts]
while engine.has_work:
    for token in engine.step():
        print(token.request, token.id, token.finish)
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from gguflow.engine.adapters import salted
from gguflow.engine.ahead import Ahead
from gguflow.engine.dataclass import replace
from gguflow.engine.interrupt import Cancelled
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import token_ids
from gguflow.engine.sampling import GREEDY, SamplerRows, seed_of

from .embed import Embedder
from .flight import Flight
from .host_sampling import Choice, HostSampler, check_extras, prompt_logprobs
from .replay import replay
from .request import POOLINGS, EmbedRequest, Finish, Job, LogitsError, Request, RequestId, Token
from .runner import Results, Runner, Sampling
from .runs import generated_rows, runs_of
from .scheduler import Batch, Scheduler
from .speculation import Drafting, Line, rows_to_check
from .speculation_host import Picked
from .speculator import Speculator
from .stats import EngineStats
from .told import token_of
from .warming import Warming

if TYPE_CHECKING:
    from gguflow.engine.model import Model

LEAST_AHEAD = 3  # steps that are worth starting to run ahead
MOST_AHEAD = 128  # for which pages are set aside at a time
NOTHING: Mapping[RequestId, Choice | Exception] = {}
LOGITS_BYTES = 32 << 20  # of the rows of a prompt whose probabilities are asked for, in one run


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
        model.check_open()
        self.model = model
        speculation = model.speculation
        n_verify = rows_to_check(n_seqs, speculation.most) if speculation is not None else 0
        self._runner = Runner(model, profile, n_verify)
        self._speculator = Speculator(model, speculation, self._runner) if speculation else None
        self._kv = self._runner.kv
        self._scheduler = Scheduler(
            self._kv, model.options.n_ubatch, prompts_first, self._runner.n_pieces,
            gathers=not self._runner.is_host,
        )  # fmt: skip
        self._samplers = SamplerRows(model.options.n_seqs)
        self._jobs: dict[RequestId, Job] = {}
        self._ids = count()
        self._lock = threading.Lock()
        self._incoming: deque[Job] = deque()
        self._cancelled: deque[RequestId] = deque()
        self._flight = Flight(self._cancelled)
        self._ahead: Ahead | None = None
        self._aboard: list[Job] = []  # whose tokens the steps on their way make,
        self._aboard_seqs = np.zeros(0, np.int64)  # and their numbers in the cache
        self._n_steps = self._n_prompt = self._n_generated = 0
        self._embedder: Embedder | None = None
        self._embeds: dict[RequestId, EmbedRequest] = {}
        self._new_embeds: deque[RequestId] = deque()

    # -- from any thread -------------------------------------------------------------------------

    def add(self, request: Request | EmbedRequest) -> RequestId:
        """Accept a request. Raises ContextError for a prompt longer than the context, ValueError
        for one without tokens or with ids that do not exist, TypeError for what are no ids; both
        also for options of a request that it cannot have."""
        ids = token_ids(request.ids)
        self.model.check_prompt(ids)
        n_adapters = len(self.model.options.lora)
        if request.lora is not None and len(request.lora) != n_adapters:
            raise ValueError(f"lora: {len(request.lora)} factors for {n_adapters} adapters")
        if isinstance(request, EmbedRequest):
            return self._add_embed(replace(request, ids=ids))
        if request.max_tokens < -1:
            raise ValueError(f"max_tokens {request.max_tokens}: expected -1 or more")
        check_extras(request, self.model.hp.n_vocab, self.model.hp.causal)
        seed, n_ctx = seed_of(request.settings), self.model.options.n_ctx
        host = None if request.is_plain else self._host_sampler(request, seed)
        with self._lock:
            apart = not self._kv.share_generated
            job = Job(next(self._ids), request, ids, seed, n_ctx, apart)
            job.host = host
            if request.prompt_logprobs:
                job.most_rows = max(1, LOGITS_BYTES // (4 * self.model.hp.n_vocab))
            self._jobs[job.id] = job
            self._incoming.append(job)
        return job.id

    def _host_sampler(self, request: Request, seed: int) -> HostSampler:
        return HostSampler(request, seed, self.model.hp.n_vocab, lambda: self.model.tokenizer)

    def _add_embed(self, request: EmbedRequest) -> RequestId:
        if request.pooling not in POOLINGS:
            raise ValueError(f"pooling {request.pooling!r}: expected {' or '.join(POOLINGS)}")
        with self._lock:
            id = next(self._ids)
            self._embeds[id] = request
            self._new_embeds.append(id)
        return id

    def cancel(self, id: RequestId) -> None:
        """End a request with the next step, and the run it is in where that was mostly its own (see
        `flight`); nothing happens when it has ended already."""
        self._cancelled.append(id)
        self._flight.leave(id)

    def give_up(self) -> None:
        """End the run that `step` is at, and let it make none any more."""
        self._flight.end()

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._jobs or self._embeds)

    @property
    def stats(self) -> EngineStats:
        """Counts; exact between steps."""
        pools, s = self._kv.pools, self._scheduler
        pages = {name: p.n_pages for name, p in pools.items()}
        free = {name: p.n_available for name, p in pools.items()}
        drafting = Drafting() if self._speculator is None else replace(self._speculator.drafting)
        counts = self._n_steps, self._n_prompt, s.n_found, self._n_generated, s.n_preempted
        n_waiting = len(s.waiting) + len(self._incoming)
        return EngineStats(*counts, len(s.running), n_waiting, pages, free, drafting)

    # -- from one --------------------------------------------------------------------------------

    def warming(self) -> Warming:
        """What makes plans before requests need them; nothing else is done meanwhile."""
        return Warming(self._runner)

    @property
    def runs_ahead(self) -> bool:
        """Whether steps are on their way to a device, which no profile records."""
        return self._ahead is not None or bool(self._speculator and self._speculator.is_ahead)

    def record(self, profile: Profile | None) -> None:
        """Record the steps from here on, in which a device does not run ahead; None: no longer."""
        self._runner.profile = profile

    def step(self) -> list[Token]:
        """One run of one plan: a token for every request that generates, or several where guesses
        came true, and those that end without one.

        Should it raise, the requests are as before it and the next step does the same again; a run
        that was given up in the middle makes no tokens, and its rows are as before too.
        """
        done: list[Token] = []
        with suppress(Cancelled):
            self._step(done)
        return done

    def _step(self, done: list[Token]) -> None:
        self._take_in(done)
        if self._embeds:
            self._step_embeds(done)
        if self._ahead is not None:
            self._step_ahead(done)
            return
        if self._speculator is not None and self._speculator.is_ahead:
            self._take_round(self._speculator, done)
            return
        began = time.perf_counter()
        batch = self._scheduler.next()
        if not batch.singles and not batch.chunks:
            return
        self._n_steps += 1
        for job in batch.singles:
            if job.n_new > 1:
                replay(self._runner, job.place, job.tokens[:-1])
                job.n_rows = len(job.tokens) - 1
        self._set_samplers(batch.singles)
        if batch.chunks:
            self._run(batch, done)
        elif not self._speculate(batch.singles, done):
            if self._runs_ahead(batch):
                self._step_ahead(done)
            else:
                self._run(batch, done)
                self._ran_plain(len(batch.singles), time.perf_counter() - began)

    def _take_in(self, done: list[Token]) -> None:
        """Requests that have come and cancellations since the last step."""
        while self._incoming:
            job = self._incoming.popleft()
            self._scheduler.add(job)
            if job.request.max_tokens == 0:
                self._end(job, None, "length", done)
        while self._cancelled:
            id = self._cancelled.popleft()
            cancelled = self._jobs.get(id)
            if cancelled is not None:
                self._end(cancelled, None, "cancel", done)
            elif id in self._embeds:
                self._cancel_embed(id, done)
        if self.runs_ahead and self._scheduler.wants_prompts:
            self._stop_ahead()

    def _stop_ahead(self) -> None:
        """Start no more steps or rounds on a device; those on their way are still taken."""
        if self._ahead is not None:
            self._ahead.stop()
        if self._speculator is not None:
            self._speculator.stop()

    def _end(
        self, job: Job, token: int | None, finish: Finish, done: list[Token],
        choice: Choice | None = None, error: Exception | None = None,
    ) -> None:  # fmt: skip
        index = job.n_generated - (token is not None)
        done.append(token_of(job, token, index, finish, choice, error))
        self._scheduler.remove(job)
        job.is_over = True
        if self._speculator is not None:
            self._speculator.forget({job.id})
        with self._lock:
            del self._jobs[job.id]

    # -- embeddings ------------------------------------------------------------------------------

    def _step_embeds(self, done: list[Token]) -> None:
        """One run of texts to be made vectors of. Steps that are on their way come first."""
        if self._embedder is None:
            self._embedder = Embedder(self._runner, self._flight)
        while self._new_embeds:
            id = self._new_embeds.popleft()
            if (request := self._embeds.get(id)) is not None:
                self._embedder.add(id, request.ids, request.pooling, salted(request.lora, b""))
        if self.runs_ahead:
            self._stop_ahead()
            return
        for id, vector, error in self._embedder.step():
            finish: Finish = "embedding" if error is None else "error"
            done.append(Token(id, None, 0, finish, error=error, embedding=vector))
            with self._lock:
                del self._embeds[id]

    def _cancel_embed(self, id: RequestId, done: list[Token]) -> None:
        if self._embedder is not None:
            self._embedder.cancel(id)
        done.append(Token(id, None, 0, "cancel"))
        with self._lock:
            del self._embeds[id]

    # -- runs ------------------------------------------------------------------------------------

    def _run(self, batch: Batch, done: list[Token]) -> None:
        singles, chunks = batch.singles, batch.chunks
        sampled = [*singles, *(job for job, n in chunks if n == job.n_new)]
        self._set_samplers(sampled)
        seqs = np.array([job.seq for job in sampled], np.int64)
        every = any(job.wants_rows for job, _ in chunks)
        at: Sequence[int] = range(len(sampled))  # where their outputs are
        if chunks:
            runs = runs_of(self._kv, batch, self.model.options.n_ubatch)
        else:
            runs = [generated_rows(singles)]
        sampling = self._sampling(seqs) if sampled and not every else None
        aboard = {job.id: 1 for job in singles} | {job.id: n for job, n in chunks}
        with self._flight.of(aboard, self._kv.states is None):
            results = self._runner.run_all(runs, sampling, every)
        if every:
            at = prompt_logprobs(batch, results[-1])
        if sampled:
            # A processor may raise: nothing has been told of the run until here.
            tokens, choices = self._choose(sampled, at, results, every)
        self._advance(singles)
        for job, n in chunks:
            self._kv.advance(job.place, job.tokens[job.n_rows : job.n_rows + n])
            job.n_rows += n
            self._n_prompt += n
        if sampled:
            self._accept(sampled, seqs, tokens, done, choices)

    def _set_samplers(self, jobs: Sequence[Job]) -> None:
        """Settings, draws and histories of jobs that come, or come back after a preemption."""
        for job in jobs:
            if not job.has_sampler:
                settings = job.request.settings if job.host is None else GREEDY
                self._samplers.set(job.place, settings, job.seed, job.tokens, job.n_generated)
                job.has_sampler = True

    def _choose(
        self, jobs: Sequence[Job], at: Sequence[int], results: Results, every: bool
    ) -> tuple[np.ndarray, dict[RequestId, Choice | Exception]]:
        """The next token of each, and by job what the host has found of it: the choice, or why
        there is none. at: their rows of the outputs; every: of which the last are the logits."""
        index = -1 if every else -2
        found: dict[RequestId, Choice | Exception] = {}
        new = [(i, j) for i, j in zip(at, jobs, strict=True) if not j.n_generated]
        # Those of a device are looked at once: what is wrong with a model shows in its first
        # ones, and bringing them all over takes long.
        if new and (self._runner.is_host or self._n_generated == 0):
            logits = results[index]
            for i, job in new:
                if not np.isfinite(logits[i]).all():
                    found[job.id] = LogitsError("the logits are not finite")
        tokens = np.zeros(len(jobs), np.int32) if every else results[-1]
        if every or any(job.host is not None for job in jobs):
            tokens = tokens.copy()
            for n, (i, job) in enumerate(zip(at, jobs, strict=True)):
                host = job.host or (self._host_sampler(job.request, job.seed) if every else None)
                if host is None or job.id in found:
                    continue
                try:
                    choice = host.choose(results.row(index, i), job.tokens, job.n_generated)
                except Exception as e:
                    found[job.id] = e
                else:
                    tokens[n] = choice.id
                    found[job.id] = choice
        return tokens, found

    def _advance(self, jobs: Sequence[Job]) -> None:
        """The row of a generated token was computed for each of these."""
        self._kv.advance_each([job.place for job in jobs], [job.tokens[-1] for job in jobs])
        for job in jobs:
            job.n_rows += 1

    def _sampling(self, seqs: np.ndarray) -> Sampling:
        s = self._samplers
        return Sampling(s.settings[seqs], s.rng[seqs], s.history[seqs])

    def _accept(
        self, jobs: Sequence[Job], seqs: np.ndarray, tokens: np.ndarray, done: list[Token],
        found: Mapping[RequestId, Choice | Exception] = NOTHING,
    ) -> None:  # fmt: skip
        """A token for each of some jobs; those that have ended meanwhile get none. found: by job,
        what the host knows of it."""
        self._samplers.accept(seqs, tokens)
        for job, token in zip(jobs, tokens.tolist(), strict=True):
            if job.is_over:
                continue
            choice = found.get(job.id) if found else None
            if isinstance(choice, Exception):
                self._end(job, None, "error", done, error=choice)
                continue
            ids = job.tokens
            ids.append(token)
            self._n_generated += 1
            index = len(ids) - job.n_prompt - 1
            if token in job.request.stop:
                self._end(job, token, "stop", done, choice)
            elif len(ids) >= job.n_most:
                self._end(job, token, "length", done, choice)
            elif index and job.host is None:
                done.append(Token.plain(job.id, token, index))
            else:
                done.append(token_of(job, token, index, None, choice))

    # -- guesses ---------------------------------------------------------------------------------

    def _speculate(self, jobs: Sequence[Job], done: list[Token]) -> bool:
        """Several tokens for each of these jobs, if they can be guessed and that pays."""
        speculator = self._speculator
        if speculator is None or speculator.plain_steps(len(jobs)):
            return False
        seqs = np.array([job.seq for job in jobs], np.int64)
        lines = [Line(job.id, job.place, job.tokens, job.n_most - len(job.tokens)) for job in jobs]
        picked = Picked(jobs)
        alone = not self._embeds and len(jobs) == len(self._scheduler.running)
        found = speculator.step(lines, self._sampling(seqs), picked.picks, alone)
        if found is None:
            return False
        self._aboard, self._aboard_seqs = [*jobs], seqs
        self._take_found(found, picked, done)
        return True

    def _take_round(self, speculator: Speculator, done: list[Token]) -> None:
        """Take the tokens of one round that was on its way, as `_step_ahead` does."""
        found = speculator.step((), self._sampling(self._aboard_seqs[:0]), ())
        assert found is not None
        self._take_found(found, Picked(()), done)
        if not speculator.is_ahead:
            for job in self._aboard:
                if not job.is_over:
                    self._kv.shrink(job.place)

    def _take_found(
        self, found: Sequence[Sequence[int]], picked: Picked, done: list[Token]
    ) -> None:
        """Several tokens for each of those aboard."""
        jobs, seqs = self._aboard, self._aboard_seqs
        for i in range(max(map(len, found))):
            at = [k for k, job in enumerate(jobs) if i < len(found[k]) and not job.is_over]
            mine = [jobs[k] for k in at]
            self._advance(mine)
            tokens = np.array([found[k][i] for k in at])
            self._accept(mine, seqs[at], tokens, done, picked.at(i))

    def _ran_plain(self, n_jobs: int, seconds: float, n_runs: int = 1) -> None:
        if self._speculator is not None:
            self._speculator.ran_plain(n_jobs, seconds, n_runs)

    # -- running ahead ---------------------------------------------------------------------------

    def _runs_ahead(self, batch: Batch) -> bool:
        """Whether the device makes the next tokens by itself; it is started if it can."""
        jobs = batch.singles
        n_running = len(self._scheduler.running) - batch.n_gathered
        if self._runner.profile is not None or len(jobs) < n_running:
            return False
        if self._embeds or any(job.host is not None for job in jobs):
            return False
        if not self._runner.has_loop(len(jobs)):
            return False
        most = self._steps_ahead(jobs)
        if self._speculator is not None:
            most = min(most, max(LEAST_AHEAD, self._speculator.plain_steps(len(jobs))))
        seqs = np.array([job.seq for job in jobs], np.int64)
        rows = generated_rows(jobs)
        while most >= LEAST_AHEAD and not self._kv.grow_all(seqs.tolist(), [most] * len(jobs)):
            most //= 2
        if most < LEAST_AHEAD:
            return False
        loop = self._runner.write(rows, self._sampling(seqs)).token_loop
        assert loop is not None
        self._ahead, self._aboard, self._aboard_seqs = Ahead(loop, most), [*jobs], seqs
        return True

    def _steps_ahead(self, jobs: Sequence[Job]) -> int:
        """How many steps these may make. Who ends on the way keeps a row, which nobody sees; but a
        recurrent state would go on with it."""
        left = [job.n_most - len(job.tokens) for job in jobs]
        if self._kv.states is not None:  # which is copied for later uses where it stands then
            most = min(MOST_AHEAD, *left)
            return min(self._kv.until_checkpoint(job.place, most) for job in jobs)
        room = self.model.options.n_ctx - max(job.n_rows for job in jobs)
        return min(MOST_AHEAD, room, max(left))

    def _step_ahead(self, done: list[Token]) -> None:
        """Take the tokens of one step that was on its way. Once half of the jobs have ended no more
        are started, but those that are on their way are taken."""
        ahead, self._ahead = self._ahead, None  # should this be interrupted
        assert ahead is not None
        try:
            tokens = ahead.next()[: len(self._aboard)]
        except BaseException:
            if self._kv.states is not None:  # which have seen tokens that nobody takes
                for job in self._aboard:
                    if not job.is_over:
                        self._scheduler.preempt(job)
            raise
        self._ahead = ahead
        self._advance([job for job in self._aboard if not job.is_over])
        self._accept(self._aboard, self._aboard_seqs, tokens, done)
        alive = [job for job in self._aboard if not job.is_over]
        n_over = len(self._aboard) - len(alive)
        if n_over >= len(alive) or (n_over and self._kv.states is not None):
            ahead.stop()
        if ahead.is_over or not alive:
            self._ran_plain(len(self._aboard), ahead.seconds, ahead.taken)
            self._ahead = None
            for job in alive if not self._scheduler.is_ample else ():
                self._kv.shrink(job.place)
