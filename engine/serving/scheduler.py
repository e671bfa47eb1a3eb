"""Which rows the next run computes: continuous batching, a run at a time (Yu et al. 2022, "Orca").

Every sequence that generates has its row in every run. Beside them go pieces of prompts, several
prompts a run, first come first served, except that whoever is first leaves a quarter of what there
is to those behind: a long prompt does not hold up short ones, and is not held up by them. A new
request is let in when there are pages for its whole prompt and some tokens more. When pages run out
the youngest sequence gives its own back and is computed again later, from the tokens it has.

Where runs with prompts cost more than their rows (`gathers`: a device that otherwise runs ahead of
the host, and whose plans are padded), short prompts that come one by one are gathered: the next
such run waits until it is full, or somebody has waited as long as the batch's size allows.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.plan_key import PAGE

from .kv import KvCache
from .pages import OutOfPages
from .request import Job

# Prompts are gathered for so many seconds at most for each sequence that generates, since the last
# run that had some, while no more than a 16th of the sequences wait: what they could make meanwhile
# is lost, what it costs to interrupt the others is shared.
GATHER_EACH, GATHER_MOST, GATHER_SHARE = 2.5e-4, 0.03, 16


@dataclass
class Batch:
    """What the next run computes. singles: jobs with a generated token, or with several that have
    to be computed again first. chunks: jobs, and how many of their next tokens. n_gathered: jobs
    that run whose prompts wait for others."""

    singles: list[Job] = field(default_factory=list)
    chunks: list[tuple[Job, int]] = field(default_factory=list)
    n_gathered: int = 0


class Scheduler:
    """Jobs that run and jobs that wait, both by age.

    n_chunk: rows of prompts in a run. prompts_first: nobody generates while there are prompts to
    compute. n_runs: one after the other that a batch may be cut into (`runs.in_runs`). gathers:
    whether short prompts are. is_ample: whether there are pages for everybody's whole context.
    """

    def __init__(
        self, kv: KvCache, n_chunk: int, prompts_first: bool = False, n_runs: int = 1,
        gathers: bool = False, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.kv = kv
        self.n_chunk = n_chunk
        self.n_runs = n_runs
        self.prompts_first = prompts_first
        self._gathers, self._now = gathers, now
        self.is_ample = kv.is_ample(n_chunk * n_runs)
        self._has_run, self._last = False, 0.0  # one with prompts, and when it was over
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.n_preempted = 0
        self.n_found = 0  # tokens that were in the cache already

    def add(self, job: Job) -> None:
        insort(self.waiting, job, key=lambda j: j.id)

    def remove(self, job: Job) -> None:
        """A job that has ended."""
        if job.seq is None:
            self.waiting.remove(job)
            return
        self.running.remove(job)
        self.kv.free(job.seq)
        job.seq, job.n_rows, job.has_sampler = None, 0, False

    def next(self) -> Batch:
        """The next run, with pages for its rows; empty when nobody is there."""
        batch = Batch()
        prompts = [job for job in self.running if not job.generates]
        begins = self._begins(prompts)
        shares = self._shares(prompts) if begins else {job.id: 0 for job in prompts}
        for job in [*self.running]:
            if job.seq is None:  # gave its pages to an older one
                continue
            share = shares.get(job.id)
            if share is None:
                if self._grow(job, job.n_new):
                    batch.singles.append(job)
            elif share:
                n = self.kv.until_checkpoint(job.seq, share)
                if self._grow(job, n):
                    batch.chunks.append((job, n))
        if not begins:
            batch.n_gathered = sum(job.seq is not None for job in prompts)
        elif self.may_admit:
            self._admit(batch, shares)
        if batch.chunks:
            self._has_run = True
            if self.prompts_first:
                batch.singles.clear()
        return batch

    @property
    def wants_prompts(self) -> bool:
        """Whether the next run would have some."""
        return self._begins([job for job in self.running if not job.generates])

    @property
    def may_admit(self) -> bool:
        """Whether the next run might let somebody in."""
        return bool(self.waiting and self.kv.n_free_seqs)

    def preempt(self, job: Job) -> None:
        """Take a job's pages; they are computed again when it gets others."""
        self.remove(job)
        self.add(job)
        self.n_preempted += 1

    # -- inside ----------------------------------------------------------------------------------

    def _begins(self, prompts: list[Job]) -> bool:
        """Whether the next run has prompts, or they are gathered. prompts: of those who run."""
        if self._has_run:
            self._has_run, self._last = False, self._now()
        waiting = self.waiting[: self.kv.n_free_seqs]
        if not prompts and not waiting:
            return False
        n_generate = len(self.running) - len(prompts)
        n_wait = len(prompts) + len(waiting)
        if not self._gathers or n_wait * GATHER_SHARE > n_generate:
            return True
        rows = sum(job.n_next for job in prompts)
        # A long prompt goes on at once.
        if rows >= self.n_chunk // 4 or rows + sum(j.n_next for j in waiting) >= self.n_chunk:
            return True
        wait = min(GATHER_MOST, GATHER_EACH * n_generate)
        return self._now() - self._last >= wait

    def _shares(self, prompts: list[Job]) -> dict[int, int]:
        """Rows of the run's chunks for jobs with a prompt to compute."""
        line = [*prompts, *self.waiting[: self.kv.n_free_seqs]]
        shares = {job.id: 0 for job in line}
        if not self.kv.share_generated:
            # Of a run whose rows all have an output the last ones' bits may be others.
            line = [job for job in line if job.wants_rows == line[0].wants_rows]
        # Rows that all have an output are of one run.
        left = self.n_chunk * (1 if any(job.wants_rows for job in line) else self.n_runs)
        if self.kv.whole_prompts:
            for job in line:
                shares[job.id] = job.n_next if job.n_next <= left else 0
                left -= shares[job.id]
            return shares
        for i, job in enumerate(line):
            most = left if i == len(line) - 1 else left - left // 4
            shares[job.id] = min(job.n_next, most)
            left -= shares[job.id]
        for job in line:
            more = min(job.n_next - shares[job.id], left)
            shares[job.id] += more
            left -= more
        return shares

    def _admit(self, batch: Batch, shares: dict[int, int]) -> None:
        wanted = self._wanted()
        while self.may_admit:
            job = self.waiting[0]
            share = shares.get(job.id, 0)
            if not share:
                return
            ids = job.prompt
            if job.hashes is None:
                job.hashes = self.kv.chain(ids, job.salt)
            try:
                seq = self.kv.create(ids, job.salt, job.hashes)
            except OutOfPages:  # of recurrent states
                return
            if self.running and not self._has_pages(job, seq, wanted):
                self.kv.free(seq)
                return
            n_rows = self.kv.length(seq)
            n = self.kv.until_checkpoint(seq, min(share, len(ids) - n_rows))
            self.kv.grow(seq, n)
            if not self.is_ample:
                self._want(job, seq, wanted)
            self.waiting.pop(0)
            job.seq, job.n_rows, job.hashes = seq, n_rows, None
            self.n_found += n_rows
            if job.n_found < 0:
                job.n_found = n_rows
            insort(self.running, job, key=lambda j: j.id)
            batch.chunks.append((job, n))

    def _wanted(self) -> dict[str, int]:
        """By group, the pages that the prompts of all who run and the next tokens of each will take
        yet."""
        wanted = dict.fromkeys(self.kv.groups, 0)
        for job in self.running if not self.is_ample else ():
            self._want(job, job.place, wanted)
        return wanted

    def _want(self, job: Job, seq: int, wanted: dict[str, int]) -> None:
        n_rows = min(len(job.tokens) + PAGE, job.n_most) - 1
        more = self.kv.n_missing(seq, n_rows - self.kv.length(seq), self.n_chunk * self.n_runs)
        for name, n in more.items():
            wanted[name] += n

    def _has_pages(self, new: Job, seq: int, wanted: dict[str, int]) -> bool:
        """Whether there are pages for those of all who run and of a new one, of which they would
        soon be short otherwise."""
        if self.is_ample:
            return True
        wanted = {**wanted}
        self._want(new, seq, wanted)
        return all(n <= self.kv.n_available[name] for name, n in wanted.items())

    def _grow(self, job: Job, n: int) -> bool:
        """Pages for n more rows, from younger jobs if need be; False where the job has to wait."""
        assert job.seq is not None
        while True:
            try:
                self.kv.grow(job.seq, n)
                return True
            except OutOfPages:
                youngest = self.running[-1]
                if youngest is job:
                    if len(self.running) == 1:
                        raise  # `Engine.add` lets nothing in that does not fit by itself
                    return False
                self.preempt(youngest)
