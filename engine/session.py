"""Session: one sequence over a model. Steps tokens, reuses what the KV cache holds, generates."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gguflow.engine import interrupt
from gguflow.engine.ahead import Ahead
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.piece import FinishReason, Timings
from gguflow.engine.profile import Profile
from gguflow.engine.prompt import ContextError, token_ids
from gguflow.engine.runtime import BoundPlan
from gguflow.engine.sampling import N_HISTORY, SamplerSettings, SamplerState
from gguflow.engine.serving.host_sampling import Choice, HostSampler, check_extras
from gguflow.engine.serving.replay import recall, replay
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.rows import Piece, rows_of
from gguflow.engine.serving.runner import Runner, Sampling
from gguflow.engine.serving.speculation import Drafting, rows_to_check
from gguflow.models.base import ModelError

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.serving.speculation_session import SessionGuesses

LEAST_AHEAD = 3  # steps left that are worth starting to run ahead
MOST_TAKEN_BACK = 128  # tokens that a recurrent state may have to see again after a stop


def sampling_of(sampler: SamplerState) -> Sampling:
    """The operands of a run with one output."""
    return Sampling(sampler.vector[None], sampler.rng[None], sampler.history[None])


@dataclass
class _Turn(SamplerState):
    """A generation. host: chooses its tokens where the `sample` op cannot. n_prompt: tokens of its
    prompt."""

    host: HostSampler | None = None
    n_prompt: int = 0


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
        model.check_open()
        speculation = model.speculation
        n_verify = rows_to_check(1, speculation.most) if speculation is not None else 0
        self._runner = Runner(model, profile, n_verify)
        self._guesses: SessionGuesses | None = None
        if speculation is not None:
            from gguflow.engine.serving.speculation_session import SessionGuesses

            self._guesses = SessionGuesses(model, speculation, self._runner)
        self._kv = self._runner.kv
        self._n_pieces = self._runner.n_pieces  # of a prompt that are on their way at once
        self._seq = self._kv.create()
        self._gone: list[int] = []  # tokens at the end whose rows a sliding window gave back
        self._lock = threading.RLock()
        self._turn: _Turn | None = None  # the generation that was the last to step
        self._ahead: Ahead | None = None  # steps of that generation that are on their way
        self._n_before_ahead = 0  # rows of the sequence when they were started
        self.on_prompt: Callable[[int, int], None] | None = None  # called with tokens done, of all

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
        """How long it is."""
        return self._kv.length(self._seq) + len(self._gone)

    @property
    def drafting(self) -> Drafting:
        """What came of guesses so far."""
        return Drafting() if self._guesses is None else replace(self._guesses.drafting)

    def save_lookup(self) -> None:
        """Write the n-grams of what was generated to `Speculation.lookup_cache`, where there is
        one. Raises SpeculationError."""
        if self._guesses is not None:
            self._guesses.save()

    def bound_plan(self, n_tokens: int, outputs: str, sample: bool) -> BoundPlan:
        """The lowered plan that runs this many tokens."""
        single, every = n_tokens == 1, outputs == "all"
        n_out = {"last": 1, "all": n_tokens, "none": 0}[outputs]
        n_chunk = 0 if single else n_tokens
        key = self._runner.buckets.key(int(single), n_chunk, 1, n_out, every, sample)
        return self._runner.plan(key)

    # -- stepping --------------------------------------------------------------------------------

    def step(
        self, ids: Sequence[int], outputs: str = "none", sampler: SamplerState | None = None,
        prompt: bool = False,
    ) -> Sequence[NDArray[np.generic]]:  # fmt: skip
        """Append tokens to the cache in one run of one plan; returns the plan's outputs.

        outputs: "last", "all" or "none" asks for logits; with a sampler the last output is the
        chosen token. The arrays are overwritten by the next run. prompt: they are a prompt's, even
        if it is one: on some devices its bits differ from a generated token's. Raises ContextError
        when full.
        """
        return self._append([ids], outputs, sampler, prompt)

    def _append(
        self, pieces: Sequence[Sequence[int]], outputs: str, sampler: SamplerState | None,
        prompt: bool,
    ) -> Sequence[NDArray[np.generic]]:  # fmt: skip
        """`step` for pieces of a prompt in a run each; outputs: of the last."""
        n_past, n = self.n_tokens, sum(map(len, pieces))
        self._settle()
        if n_past + n > self.model.options.n_ctx:
            raise ContextError(
                f"{n_past + n} tokens do not fit the context of "
                f"{self.model.options.n_ctx}; raise `n_ctx`"
            )
        if not n:
            raise ValueError("no tokens to run")
        self._bring_back()
        sampling = None if sampler is None else sampling_of(sampler)
        self._kv.grow(self._seq, n)
        result: Sequence[NDArray[np.generic]]
        like_single = self._runner.is_host and not (self._kv.whole_prompts and n_past)
        single = n == 1 and (not prompt or like_single)
        if single:
            result = self._runner.run_one(self._seq, pieces[0][0], sampling, outputs != "none")
        else:
            ahead, runs = 0, []
            for ids in pieces:
                is_last = ahead + len(ids) == n
                n_out = {"last": 1, "all": len(ids), "none": 0}[outputs] if is_last else 0
                runs.append(rows_of(self._kv, [Piece(self._seq, ids, n_out, ahead=ahead)]))
                ahead += len(ids)
            result = self._runner.run_all(runs, sampling, outputs == "all")
        for ids in pieces:
            self._kv.advance(self._seq, ids, single)
        return result

    def _settle(self) -> None:
        """No generation is under way: what comes next begins with the tokens that were taken."""
        ahead, self._turn, self._ahead = self._ahead, None, None
        if ahead is not None and ahead.running and self._kv.states is not None:
            self._kv.states.go_back(self._seq)
            recall(self._runner, self._seq, self._n_before_ahead)
        if self._guesses is not None:
            self._guesses.settle(self._seq)

    def _bring_back(self) -> None:
        """Compute again what a sliding window gave back."""
        if self._gone:
            gone, self._gone = self._gone, []
            self.prefill(gone, None, "none")

    @property
    def is_full(self) -> bool:
        """Whether the context has no room for another token."""
        return self.n_tokens >= self.model.options.n_ctx

    def rewind(self, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` tokens."""
        self._settle()
        left = self.tokens[:n_tokens]
        self._gone = left[self._kv.trim(self._seq, len(left)) :]

    def prefill(
        self, ids: Sequence[int], sampler: SamplerState | None, outputs: str = "last"
    ) -> Sequence[NDArray[np.generic]]:
        """Append a prompt in ubatches, several at a time where devices hold layers in turn; outputs
        as in `step`, of the last ubatch only."""
        done, size = 0, self.model.options.n_ubatch
        while done < len(ids):
            n = min(size * self._n_pieces, len(ids) - done)
            part = ids[done : done + self._kv.until_checkpoint(self._seq, n)]
            done += len(part)
            last = done == len(ids)
            given = (outputs, sampler) if last else ("none", None)
            if len(part) <= size:
                result = self.step(part, *given, prompt=True)
            else:
                pieces = [part[i : i + size] for i in range(0, len(part), size)]
                result = self._append(pieces, *given, prompt=True)
            if self.on_prompt is not None:
                self.on_prompt(done, len(ids))
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
        request = Request(prompt, max_tokens, settings or SamplerSettings(), frozenset(stop))
        for choice in self.choices(request):
            yield choice.id

    def choices(
        self, request: Request, timings: Timings | None = None
    ) -> Generator[Choice, None, FinishReason]:
        """The same for a request with all its options but `prompt_logprobs` and `salt`; raises what
        its processor does, and returns why it ended. timings: to be kept up to date."""
        ids, max_tokens, stop = token_ids(request.ids), request.max_tokens, request.stop
        self.model.check_prompt(ids)
        if max_tokens < -1:
            raise ValueError(f"max_tokens {max_tokens}: expected -1 or more")
        n_vocab = self.model.hp.n_vocab
        check_extras(request, n_vocab)
        self.timings = timings = Timings() if timings is None else timings
        if max_tokens == 0:
            return "length"
        turn = _Turn(request.settings, n_prompt=len(ids))
        if not request.is_plain:
            turn.host = HostSampler(request, turn.seed, n_vocab, lambda: self.model.tokenizer)
        for t in ids[-N_HISTORY:]:
            turn.accept(t)
        clock = time.perf_counter
        began = clock()
        before = self.drafting
        choice, timings.n_prompt = self._next(ids, turn, max_tokens)
        timings.prompt_s = clock() - began
        began = clock()
        n = 0
        while choice.id not in stop:
            n += 1
            # Set before the yield: a caller that stops here leaves true timings behind.
            timings.n_generated = n
            timings.n_runs = n - 1
            timings.n_drafted = self.drafting.drafted - before.drafted
            timings.n_accepted = self.drafting.accepted - before.accepted
            timings.generate_s = clock() - began
            yield choice
            if n == max_tokens or len(ids) >= self.model.options.n_ctx:
                return "length"
            turn.accept(choice.id)
            turn.advance()
            ids.append(choice.id)
            choice, _ = self._next(ids, turn, max_tokens - n)
        return "stop"

    def _next(self, ids: Sequence[int], turn: _Turn, most: int) -> tuple[Choice, int]:
        """The token after a sequence, and how many tokens had to be computed: one, unless the
        generation is new or something else used the session since its last step.

        most: tokens the generation may still ask for, this one included; no limit when negative.
        """
        with self._lock:
            if self._turn is turn and (known := self._guessed(ids, turn, most)) is not None:
                return known, 1
            if self._turn is turn and self._runs_ahead(ids, turn, most):
                assert self._ahead is not None
                self._turn = None  # should this be interrupted
                token = int(self._ahead.next()[0])
                self._kv.advance(self._seq, ids[-1:], True)
                self._turn = turn
                if self._guesses is not None and self._ahead.is_over:
                    self._guesses.ran_plain(self._ahead.seconds, self._ahead.taken)
                return Choice(token), 1
            if self._turn is not turn:
                self._change_to(ids, turn.n_prompt)
                if self._guesses is not None:
                    self._guesses.restart()
            again = self._turn is turn  # `step` forgets whose turn it is
            new = ids[self.n_tokens :]
            sampler = None if turn.host else turn
            if len(ids) > turn.n_prompt and (again or not self._kv.share_generated):
                self._replay(ids, turn.n_prompt)
                result = self.step(ids[-1:], "last", sampler)
            else:
                with interrupt.heeded_for_callers():
                    result = self.prefill(new, sampler)
            if not again and not np.isfinite(result[0]).all():
                raise ModelError(
                    f"{self.model.source.path}: the logits are not finite; the weights hold NaN or "
                    "infinity, or values too large to multiply"
                )
            if turn.host is None:
                choice = Choice(int(result[-1][0]))
            else:
                choice = turn.host.choose(result[0][0], ids, int(turn.rng[1]))
            if again and self._guesses is not None:
                self._guesses.made_plain()
            self._turn = turn
            return choice, len(new)

    def _guessed(self, ids: Sequence[int], turn: _Turn, most: int) -> Choice | None:
        """The token after a sequence, if it was guessed before or can be guessed now."""
        if self._guesses is None or self._gone or len(ids) != self.n_tokens + 1:
            return None
        if self._ahead is not None and not self._ahead.is_over:
            return None
        room = self.model.options.n_ctx - self.n_tokens
        most = min(room, most) if most >= 0 else room
        choice = self._guesses.next(ids, self._seq, most, sampling_of(turn), turn.host)
        if choice is not None:
            self._kv.advance(self._seq, ids[-1:], True)
        return choice

    def _change_to(self, ids: Sequence[int], n_prompt: int) -> None:
        """Keep what the cache holds of another sequence: of the one before, or of earlier ones."""
        self._settle()
        before = self.tokens
        if not self._kv.share_generated:
            ids, before = ids[:n_prompt], before[: self._kv.n_chunked(self._seq)]
        keep, common = 0, min(len(before), len(ids) - 1)
        if self._kv.whole_prompts:
            common = 0
        while keep < common and before[keep] == ids[keep]:
            keep += 1
        if self._kv.n_findable(ids) <= keep:
            self.rewind(keep)
            return
        self._settle()
        self._gone = []
        self._kv.free(self._seq)
        self._seq = self._kv.create(ids)

    def _replay(self, ids: Sequence[int], n_prompt: int) -> None:
        """Compute all but the last token of a generation that lost its rows: its prompt, and then
        what it generated as it was at first, as single rows."""
        self._bring_back()
        if self.n_tokens < n_prompt:
            self.prefill(ids[self.n_tokens : n_prompt], None, "none")
        replay(self._runner, self._seq, ids[:-1])

    def _runs_ahead(self, ids: Sequence[int], turn: _Turn, most: int) -> bool:
        """Whether the device makes the tokens by itself; it is started if it can."""
        if self.profile is not None or turn.host:  # a profile has a record for every step
            return False
        if self._ahead is not None and not self._ahead.is_over:
            return True
        n_past = self.n_tokens
        room = self.model.options.n_ctx - n_past
        most = min(room, most) if most >= 0 else room
        if self._guesses is not None:
            most = min(most, max(LEAST_AHEAD, self._guesses.plain_steps))
        if (states := self._kv.states) is not None:
            most = self._kv.until_checkpoint(self._seq, min(most, MOST_TAKEN_BACK))
        if len(ids) != n_past + 1 or self._gone or most < LEAST_AHEAD:
            return False
        if self.bound_plan(1, "last", True).token_loop is None:
            return False
        while not self._kv.grow_all((self._seq,), [most]):  # a window's pages are fewer
            most //= 2
            if most < LEAST_AHEAD:
                return False
        if states is not None:
            states.mark(self._seq)
        bound = self._runner.write_one(self._seq, ids[-1], sampling_of(turn))
        assert bound.token_loop is not None
        self._n_before_ahead = n_past
        self._ahead = Ahead(bound.token_loop, most)
        return True

    # -- on disk -----------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the sequence and its rows of the cache, whole or not at all. Raises OSError."""
        from gguflow.engine.session_file import save_rows

        with self._lock:
            self._settle()
            self._bring_back()
            save_rows(path, self.model, self._kv, self._runner.states, self._seq)

    def load(self, path: str | Path) -> None:
        """Take up the sequence of a file: what a generation shares with it is not computed again.
        Raises OSError, and SessionFileError for a file that is damaged or another model's."""
        from gguflow.engine.session_file import load_rows

        with self._lock:
            load_rows(path, self.model, self._kv, self._runner.states, self._emptied)

    def _emptied(self) -> int:
        self._settle()
        self._gone = []
        self._kv.free(self._seq)
        self._seq = self._kv.create()
        return self._seq

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after every token of a new sequence: float32 [n_tokens, n_vocab]."""
        ids = token_ids(ids)
        self.model.check_ids(ids)
        out = [np.zeros((0, self.model.hp.n_vocab), np.float32)]
        n_ubatch = self.model.options.n_ubatch
        with self._lock, interrupt.heeded_for_callers():
            self.rewind(0)
            for i in range(0, len(ids), n_ubatch):
                rows = self.step(ids[i : i + n_ubatch], "all", prompt=True)[0]
                out.append(rows.astype(np.float32))  # a copy: the next run overwrites them
        return np.concatenate(out)
