"""Logarithms of the probabilities of prompts' tokens, as their runs bring them."""

from __future__ import annotations

import numpy as np

from .host_sampling import ranked
from .scheduler import Batch


def take_prompt_logprobs(batch: Batch, logits: np.ndarray) -> list[int]:
    """What the rows of prompts say of the tokens after them, where that is asked for; returns
    where the rows are that tokens are chosen from. logits: f32 [n, n_vocab]."""
    at = [*range(len(batch.singles))]
    n_before = len(at)
    for job, n in batch.chunks:
        wanted, is_last = job.wants_rows, n == job.n_new
        if wanted:
            for i in range(min(n, job.n_prompt - 1 - job.n_rows)):
                place = job.n_rows + i + 1
                k = job.request.logprobs or 0
                job.prompt_logprobs[place] = ranked(logits[n_before + i], job.tokens[place], k)
        n_before += n if wanted else int(is_last)
        if is_last:
            at.append(n_before - 1)
    return at
