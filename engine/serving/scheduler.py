"""Which rows the next run computes: continuous batching, a run at a time (Yu et al. 2022, "Orca").

Every sequence that generates has its row in every run. Beside them go pieces of prompts, several
prompts a run, first come first served, except that whoever is first leaves a quarter of what there
is to those behind: a long prompt does not hold up short ones, and is not held up by them. A new
request is let in when there are pages for its whole prompt and some tokens more. When pages run out
the youngest sequence gives its own back and is computed again later, from the tokens it has.
"""

from __future__ import annotations

from bisect import insort

from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.plan_key import PAGE

from .kv import KvCache
from .pages import OutOfPages
from .request import Job


@dataclass
class Batch:
    """What the next run computes. singles: jobs with a generated token, or with several that have
    to be computed again first. chunks: jobs, and how many of their next tokens."""

    singles: list[Job] = field(default_factory=list)
    chunks: list[tuple[Job, int]] = field(default_factory=list)


class Scheduler:
    """Jobs that run and jobs that wait, both by age.

    n_chunk: rows of prompts in a run. prompts_first: nobody generates while there are prompts to
    compute. n_runs: one after the other that a batch may be cut into (`runs.in_runs`).
    """

    def __init__(
        self, kv: KvCache, n_chunk: int, prompts_first: bool = False, n_runs: int = 1
    ) -> None:
        self.kv = kv
        self.n_chunk = n_chunk
        self.n_runs = n_runs
        self.prompts_first = prompts_first
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
        shares = self._shares(prompts) if prompts or self.may_admit else {}
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
        if self.may_admit:
            self._admit(batch, shares)
        if self.prompts_first and batch.chunks:
            batch.singles.clear()
        return batch

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

    def _shares(self, prompts: list[Job]) -> dict[int, int]:
        """Rows of the run's chunks for jobs with a prompt to compute."""
        line = [*prompts, *self.waiting[: self.kv.n_free_seqs]]
        shares: dict[int, int] = {}
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
            if self.running and not self._has_pages(job, seq):
                self.kv.free(seq)
                return
            n_rows = self.kv.length(seq)
            n = self.kv.until_checkpoint(seq, min(share, len(ids) - n_rows))
            self.kv.grow(seq, n)
            self.waiting.pop(0)
            job.seq, job.n_rows, job.hashes = seq, n_rows, None
            self.n_found += n_rows
            if job.n_found < 0:
                job.n_found = n_rows
            insort(self.running, job, key=lambda j: j.id)
            batch.chunks.append((job, n))

    def _has_pages(self, new: Job, seq: int) -> bool:
        """Whether there are pages for the prompts of all who run and of a new one, and for the next
        tokens of each, of which they would soon be short otherwise."""
        left = self.kv.n_available
        for job in (new, *self.running):
            at = seq if job is new else job.seq
            assert at is not None
            n_rows = min(len(job.tokens) + PAGE, job.n_most) - 1
            wanted = self.kv.n_missing(at, n_rows - self.kv.length(at), self.n_chunk * self.n_runs)
            for name, n in wanted.items():
                left[name] -= n
        return min(left.values(), default=0) >= 0

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
