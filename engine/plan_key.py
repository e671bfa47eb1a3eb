"""What a plan is compiled for: how many rows of which kind a run has room for."""

from __future__ import annotations

from gguflow.engine.dataclass import dataclass

PAGE = 64  # rows of a page of the KV cache
STATES = "states"  # the group of recurrent layers, whose slots are its pages


@dataclass(frozen=True)
class PlanKey:
    """The sizes of a run. Fewer rows than these are padded with -1.

    n_single: rows that are each alone in their sequence, a generated token each; they come first.
    n_chunk: rows of pieces of prompts, a sequence's rows side by side.
    n_seqs: rows of the page tables.
    n_out: rows that get logits: 0 for none, n_tokens for all in their order, else those that the
        input `out.ids` names.
    sample: whether a next token is chosen for each of them.
    """

    n_single: int
    n_chunk: int
    n_seqs: int
    n_out: int
    sample: bool = False

    def __post_init__(self) -> None:
        if min(self.n_single, self.n_chunk, self.n_out) < 0 or self.n_tokens < 1 or self.n_seqs < 1:
            raise ValueError(f"no plan has these sizes: {self}")
        if self.n_out > self.n_tokens or (self.sample and not self.n_out):
            raise ValueError(f"{self.n_out} outputs of {self.n_tokens} tokens: {self}")

    @property
    def n_tokens(self) -> int:
        return self.n_single + self.n_chunk

    @property
    def picks(self) -> bool:
        """Whether the rows to output are named by inputs."""
        return 0 < self.n_out < self.n_tokens


def step_key(n_tokens: int, outputs: str, sample: bool) -> PlanKey:
    """The plan of one sequence's next tokens. outputs: "last", "all" or "none"."""
    n_out = {"last": 1, "all": n_tokens, "none": 0}[outputs]
    single = n_tokens == 1
    return PlanKey(int(single), 0 if single else n_tokens, 1, n_out, sample)
