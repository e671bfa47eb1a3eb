"""What the tests of equal bits share: requests, engines under stress, and what came out.

A request's bits are its tokens and, of each, the SHA-256 of the logits it was chosen from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tiny_model import write_tiny

from gguflow.engine.load import ModelSource, open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options
from gguflow.engine.plan_key import PAGE
from gguflow.engine.requantize import native_converter, requantize
from gguflow.engine.sampling import GREEDY, SamplerSettings
from gguflow.engine.serving.engine import Engine
from gguflow.engine.serving.request import Request
from gguflow.engine.serving.rows import Rows
from gguflow.engine.serving.runner import Runner
from gguflow.models.mixes import find_mix

HOT = SamplerSettings(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0, seed=1)
WEIGHTS = ("Q4_0", "Q8_0", "Q4_K_M", "F16", "BF16")
N_VOCAB = 96


@dataclass(frozen=True)
class Bits:
    """Of one request. complete: whether it was not cancelled. each: digests of the logits that a
    token was chosen from, None where they were not shown. runs: the rows of the runs that made
    them."""

    tokens: tuple[int, ...]
    complete: bool = True
    each: tuple[bytes | None, ...] = ()
    runs: tuple[Rows | None, ...] = field(default=(), compare=False)

    @property
    def digest(self) -> bytes | None:
        """Of all logits; None where some were not shown."""
        shown = [x for x in self.each if x is not None]
        return hashlib.sha256(b"".join(shown)).digest() if len(shown) == len(self.tokens) else None

    def differs_at(self, wanted: Bits) -> int | None:
        """The first token that was another one or came of other logits, or is not there."""
        n = min(len(self.tokens), len(wanted.tokens))
        for i in range(n):
            a, b = self.each[i], wanted.each[i]
            if self.tokens[i] != wanted.tokens[i] or (a and b and a != b):
                return i
        ends = n == len(self.tokens) and (n == len(wanted.tokens) or not self.complete)
        return None if ends else n


def source_of(folder: Path, weights: str) -> ModelSource:
    """A model whose rows are long enough for super-blocks, in the types of a mix."""
    path = folder / "wide.gguf"
    if not path.exists():
        sizes = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64,
                 "head_dim_v": 64, "rope_dims": 64, "n_ctx_train": 1024}  # fmt: skip
        write_tiny(path, gain=2.0, **sizes)
    return requantize(open_model(path), find_mix(weights), native_converter(1))


def load(folder: Path, weights: str, **options: Any) -> Model:
    model = Model(source_of(folder, weights), Options(**options))
    model.load_weights()
    return model


def requests(n: int, seed: int = 0, longest: int = 300, most: int = 24) -> list[Request]:
    """Mixed lengths, a third of them with beginnings in common; greedy, hot, with a penalty."""
    rng = np.random.default_rng(seed)
    beginnings = [rng.integers(1, N_VOCAB, 3 * PAGE).tolist() for _ in range(2)]
    found = []
    for i in range(n):
        length = int(np.exp(rng.uniform(0, np.log(longest))))
        ids = rng.integers(1, N_VOCAB, length).tolist()
        if i % 3 == 0:
            ids = [*beginnings[i % 2][: int(rng.integers(PAGE, 3 * PAGE))], *ids][:longest]
        hot = replace(HOT, seed=i)
        settings = (GREEDY, hot, replace(hot, repeat_penalty=1.2))[i % 3]
        found.append(Request(ids, int(rng.integers(1, most)), settings))
    return found


@dataclass(frozen=True)
class Shown:
    """Logits of one row. tokens: those that its run had of the row's sequence, up to it.
    run: None for one token by itself."""

    digest: bytes
    tokens: tuple[int, ...]
    run: Rows | None


class Recorder:
    """Remembers the logits of every generated token of an engine's or a session's runs."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], Shown] = {}

    def watch(self, runner: Runner, owner: Engine | int) -> None:
        """owner: the engine whose requests the sequences belong to, or the one request."""
        run, run_one = runner.run, runner.run_one

        def watched(rows, sampling=None, every=False):
            results = run(rows, sampling, every)
            if sampling is not None:
                logits = results[-2]
                for i, row in enumerate(rows.out.tolist()):
                    seq, pos = int(rows.seqs[rows.seq[row]]), int(rows.pos[row])
                    tokens = rows.tokens[: row + 1][rows.seq[: row + 1] == rows.seq[row]]
                    self._put(owner, seq, pos, logits[i], tokens.tolist(), rows)
            return results

        def watched_one(seq, token, sampling=None, output=True):
            pos = runner.kv.length(seq)
            results = run_one(seq, token, sampling, output)
            if sampling is not None:
                self._put(owner, seq, pos, results[-2][0], [token])
            return results

        runner.run, runner.run_one = watched, watched_one  # type: ignore[method-assign]

    def _put(
        self, owner: Engine | int, seq: int, pos: int, logits: np.ndarray, tokens: Sequence[int],
        run: Rows | None = None,
    ) -> None:  # fmt: skip
        if isinstance(owner, Engine):
            (key,) = (job.id for job in owner._scheduler.running if job.seq == seq)
        else:
            key = owner
        digest = hashlib.sha256(np.ascontiguousarray(logits).tobytes()).digest()
        self._rows[key, pos] = Shown(digest, tuple(tokens), run)

    def bits(self, key: int, request: Request, tokens: Sequence[int], complete: bool) -> Bits:
        text, first = (*request.ids, *tokens), len(request.ids) - 1
        each: list[bytes | None] = []
        runs: list[Rows | None] = []
        for pos in range(first, first + len(tokens)):
            # A device that makes token after token by itself shows no logits, and what is known
            # may be those behind a guess that was wrong.
            shown = self._rows.get((key, pos))
            if shown and text[pos + 1 - len(shown.tokens) : pos + 1] != shown.tokens:
                shown = None
            each.append(shown and shown.digest)
            runs.append(shown and shown.run)
        return Bits(tuple(tokens), complete, tuple(each), tuple(runs))


def alone(model: Model, todo: Sequence[Request]) -> list[Bits]:
    """Each by itself, with an empty cache and its prompt computed at once."""
    found = []
    for request in todo:
        session, recorder = model.new_session(), Recorder()
        recorder.watch(session._runner, 0)
        tokens = list(session.generate(request.ids, request.max_tokens, request.settings))
        found.append(recorder.bits(0, request, tokens, True))
    return found


def together(
    model: Model, todo: Sequence[Request], n_seqs: int, seed: int
) -> Iterator[tuple[int, Bits]]:
    """In one engine: in random order, arriving at random steps, twice each so that prefixes are
    found; some are cancelled, and some have to give their pages back. Yields (number of the
    request, its bits)."""
    rng = np.random.default_rng(seed)
    order = [*rng.permutation(len(todo)).tolist(), *rng.permutation(len(todo)).tolist()]
    n_ubatch = int(rng.choice([16, 48, 100, 256]))
    engine = Engine(model.with_options(n_ubatch=n_ubatch), n_seqs=n_seqs)
    recorder = Recorder()
    recorder.watch(engine._runner, engine)
    whose: dict[int, int] = {}
    tokens: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    while order or engine.has_work:
        for _ in range(int(rng.integers(0, 4)) if order else 0):
            if order:
                number = order.pop()
                id = engine.add(todo[number])
                whose[id], tokens[id] = number, []
        if whose and rng.random() < 0.05:
            engine.cancel(int(rng.choice([*whose])))
        running = engine._scheduler.running
        if running and not engine.runs_ahead and rng.random() < 0.1:
            engine._scheduler.preempt(running[int(rng.integers(len(running)))])
        for token in engine.step():
            if token.id is not None:
                tokens[token.request].append(token.id)
            if token.finish is not None:
                ends[token.request] = token.finish
    stats = engine.stats
    assert stats.n_available == stats.n_pages
    assert stats.n_found > 0 and stats.n_preempted > 0
    for id, number in whose.items():
        yield number, recorder.bits(id, todo[number], tokens[id], ends[id] == "length")


def described(run: Rows | None) -> str:
    """The classes of a run's rows, and of each sequence how many and from where on."""
    if run is None:
        return "a token by itself"
    of = [run.pos[run.seq == i] for i in range(len(run.seqs))]
    pieces = ", ".join(f"{len(pos)} from {pos.min()}" for pos in of if len(pos))
    return f"a run of {run.n_tokens} rows, {run.n_single} single: {pieces}"


def check(expected: Sequence[Bits], found: Iterator[tuple[int, Bits]]) -> int:
    """Holds that every request got its bits, or the first of them where it was cancelled; returns
    how many were not."""
    n = 0
    for number, bits in found:
        wanted = expected[number]
        n += bits.complete
        at = bits.differs_at(wanted)
        if at is None:
            continue
        if bits.tokens[at : at + 1] != wanted.tokens[at : at + 1]:
            raise AssertionError(f"request {number}: another token {at}")
        runs = " and, alone, ".join(described(b.runs[at]) for b in (bits, wanted))
        raise AssertionError(f"request {number}: other logits of token {at}, by {runs}")
    return n
