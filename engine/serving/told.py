"""What a step tells of a request."""

from __future__ import annotations

from .host_sampling import Choice
from .request import Finish, Job, Token


def token_of(
    job: Job, token: int | None, index: int, finish: Finish | None,
    choice: Choice | None = None, error: Exception | None = None,
) -> Token:  # fmt: skip
    """A request's token number `index`, or its end without one. choice: what a host chose it by."""
    n_cached = max(0, job.n_found) if index == 0 else 0
    if job.host is None:
        return Token(job.id, token, index, finish, error=error, n_cached=n_cached)
    logprob, top = (None, ()) if choice is None else (choice.logprob, choice.top_logprobs)
    prompt: tuple = ()
    if index == 0 and token is not None and job.request.prompt_logprobs:
        known = job.prompt_logprobs
        prompt = ((None, ()), *(known[i] for i in range(1, job.n_prompt)))
    return Token(job.id, token, index, finish, logprob, top, prompt, error, n_cached=n_cached)
