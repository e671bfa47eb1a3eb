"""Which plan serves a run: few sizes for all runs, so that no new number of rows compiles anew."""

from __future__ import annotations

from gguflow.engine.dataclass import dataclass
from gguflow.engine.plan_key import PlanKey

LEAST_CHUNK = 16  # rows of the smallest plan for pieces of prompts
LEAST_SPLIT = 384  # from where on there are plans between powers of two
LEAST_SEQS = 16  # that pieces of prompts have room for where there is one beside them
SPARE = 1  # pieces that are ready beside one for each stage, so that no device waits for the host


def bucket(n: int, least: int, most: int) -> int:
    """The least power of two not below n and `least`; `most` where that is less and enough."""
    size = max(least, 1 << max(0, n - 1).bit_length())
    return most if n <= most < size else size


@dataclass(frozen=True)
class Buckets:
    """The sizes there are plans for.

    n_seqs: most sequences in a run. n_chunk: most rows of prompts in a run. n_verify: most rows of
        a run that checks guesses, several single rows a sequence; 0 where there are none.
    live: whether rows that are not there cost nothing. One plan then serves all smaller runs, with
        the single rows of a mixed run among the others, since only rows at the end can be left out.
    equal: whether a row's ops have to be the same in every plan (`Options.equal_bits`): each has an
        output then, and one that is a piece of a prompt has fewer outputs than rows.
    """

    n_seqs: int
    n_chunk: int
    live: bool = False
    n_verify: int = 0
    equal: bool = False

    def key(
        self, n_single: int, n_chunk: int, n_seqs: int, n_out: int, every: bool, sample: bool
    ) -> PlanKey:
        """The plan for these numbers of rows, which has room for them all.

        n_out: rows with an output, at most one a sequence. every: instead, each row has one.
        """
        if self.n_chunk == 1 and (n_single, n_chunk) == (0, 1) and not self.equal:
            n_single, n_chunk = 1, 0  # a prompt token by token
        if n_single > n_seqs and not n_chunk:
            # On hosts rows are the same either way, and together they read the cache once.
            n = bucket(n_single, self.n_verify if self.live else 1, self.n_verify)
            kinds = (0, n) if self.live else (n, 0)
            return PlanKey(*kinds, self._of_seqs(n_seqs), n if n_out or self.equal else 0, sample)
        if not n_chunk:
            # Single rows all have an output: choosing among them would only add an op.
            n = 1 if n_single == 1 else self._of_seqs(n_single)
            return PlanKey(n, 0, n, n if n_out or every or self.equal else 0, sample)
        if self.live:
            most = self.n_chunk + (self.n_seqs if self.n_seqs > 1 else 0)
            n_single, n_chunk = 0, n_single + n_chunk
            # Logits of all rows are large: no more of them than asked for.
            n_chunk = most if n_chunk <= most and not every else self._chunk(n_chunk)
        else:
            # A row that is not there costs less than a piece's rows differ: fewer plans.
            n_single = n_single and self._of_seqs(n_single, LEAST_SEQS)
            n_chunk = self._chunk(n_chunk)
        n_tokens = n_single + n_chunk
        n_seqs = self._of_seqs(n_seqs, 1 if n_seqs == 1 else LEAST_SEQS)
        # As many outputs as sequences, when there are any: fewer plans.
        n_out = n_tokens if every else min(n_tokens, n_seqs) if n_out else int(self.equal)
        if self.equal and not every and n_out == n_tokens:
            n_chunk += 1  # or the outputs would not be picked
        return PlanKey(n_single, n_chunk, n_seqs, n_out, sample)

    def piece(self, n: int) -> PlanKey:
        """The plan for n rows of prompts without an output, which others follow at once: one for
        any number of sequences, for there are copies of it."""
        return self.key(0, n, self.n_seqs, 0, False, False)

    def checked(self, n: int) -> int:
        """Rows that are computed where n check guesses."""
        return n if self.live else bucket(n, 1, self.n_verify)

    @property
    def largest(self) -> PlanKey:
        """The plan that needs the largest arena of those that generate."""
        n_single = self.n_seqs if self.n_seqs > 1 else 0
        return self.key(n_single, self.n_chunk, self.n_seqs, self.n_seqs, False, True)

    @property
    def verifying(self) -> PlanKey:
        """The largest plan of those that check guesses."""
        return self.key(self.n_verify, 0, 1, self.n_verify, False, True)

    def usual(self) -> list[PlanKey]:
        """The plans of requests whose tokens are chosen by the model's own op, in the order in
        which they are first wanted: somebody alone; a batch that fills up, by full pieces of
        prompts; then shorter pieces beside a full batch and beside fewer."""
        powers = (1 << i for i in range(self.n_seqs.bit_length()))
        counts = [*(n for n in powers if n < self.n_seqs), self.n_seqs]
        whole, *sizes = sorted({self._chunk(n) for n in range(1, self.n_chunk + 1)}, reverse=True)

        def alone(n: int) -> PlanKey:
            return self.key(n, 0, n, n, False, True)

        def pieces(n: int, chunk: int) -> list[PlanKey]:
            """Of few prompts or of more, beside so many rows, or down to half of them."""
            some = {min(m, self.n_seqs) for m in (n // 2 + 2, 2 * n) if m > 1}
            return [self.key(n, chunk, m, m, False, True) for m in sorted(some) if n < m or n > 1]

        one = [self.key(0, size, 1, 1, False, True) for size in (whole, *sizes)]
        found = [one[0], alone(1), *one[1:], *pieces(0, whole)]
        found += [key for n in counts for key in (*pieces(n, whole), alone(n))]
        found += [key for size in sizes[::-1] for key in pieces(self.n_seqs, size)]
        found += [key for n in (0, *counts) for size in sizes for key in pieces(n, size)]
        return [*dict.fromkeys(found)]

    def _of_seqs(self, n: int, least: int = 1) -> int:
        return self.n_seqs if self.live else bucket(n, least, max(n, self.n_seqs))

    def _chunk(self, n: int) -> int:
        size = bucket(n, min(LEAST_CHUNK, self.n_chunk), self.n_chunk)
        part = size // 4 * 3  # of many rows the padding would cost more than another plan
        return part if part >= LEAST_SPLIT and n <= part else size
