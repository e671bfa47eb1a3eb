"""A stand-in for a device that checks guesses round after round: what `accept` does, in numpy, and
a loop of the CPU backend's plans that ends its steps with it."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np
import pytest
from stand_in_loop import Loop

from gguflow.engine.backends.base import RoundMemory
from gguflow.engine.plan_key import PAGE
from gguflow.engine.runtime import BoundPlan


def looked_up(text: np.ndarray, n: int) -> list[int]:
    """Up to n guesses of what comes after a text, as docs/serving.md says it: one after the other,
    what followed the last 4, 3 or 2 tokens when they stood there the latest time."""
    found: list[int] = []
    for _ in range(n):
        last = [*text[-4:].tolist(), *found][-4:]
        for size in range(min(4, len(last)), 1, -1):
            ends = np.arange(size, len(text))
            same = [(text[ends - size + i] == last[len(last) - size + i]) for i in range(size)]
            places = ends[np.all(same, axis=0)]
            if len(places):
                found.append(int(text[places[-1]]))
                break
        else:
            break
    return found


def accepted(
    x: MutableMapping[str, np.ndarray], lines: np.ndarray, texts: np.ndarray,
    prepared: np.ndarray | None = None, begins: bool = False, drafted: bool = False,
) -> np.ndarray:  # fmt: skip
    """What `accept` does to a plan's inputs x, with the tokens sampled as `token`; returns what it
    tells of every row. lines, texts: changed in place. drafted: whether `draft_next` guesses what
    is not prepared, of which -1 stands in the inputs until then."""
    told = np.full(len(x["pos"]), -1, np.int32)
    for i, line in enumerate(lines):
        row, n_rows, length, end, least, number = (int(v) for v in line[:6])
        if not n_rows:
            continue
        mine, made = slice(row, row + n_rows), 0
        if not begins and x["pos"][row] >= 0:
            live = x["pos"][mine] >= 0
            right = live[1:] & (x["tokens"][mine][1:] == x["token"][mine][:-1])
            made = 1 + int(np.cumprod(right).sum())
            told[mine] = np.where(live, -2, -1)
            told[row : row + made] = x["token"][row : row + made]
            texts[number, length : length + made] = x["token"][row : row + made]
        length += made
        line[2] = length
        text, over = texts[number, :length], length > end
        room = 0 if over else min(n_rows - 1, end - length)
        if prepared is None:
            guesses = [-1] * room if drafted else looked_up(text, room)
        else:
            known = prepared[number, length : length + room]
            guesses = known[: int(np.cumprod(known >= 0).sum())].tolist()
        guesses = [] if len(guesses) < least else guesses
        n = 0 if over else 1 + len(guesses)
        line[6:8] = 0, max(0, n - 1)
        x["sampler.rng"][mine, 1] = x["sampler.rng"][row, 1] + made + np.arange(n_rows)
        x["tokens"][mine], x["pos"][mine], x["seq"][mine] = -1, -1, -1
        x["tokens"][row : row + n] = [text[-1], *guesses][:n]
        pos = length - 1 + np.arange(n)
        x["pos"][row : row + n], x["seq"][row : row + n] = pos, i
        for name in x:
            if name.startswith("rows."):
                table = x["table." + name.removeprefix("rows.")]
                entry = pos // PAGE
                page = np.where(entry < table.shape[1],
                                table[i, np.minimum(entry, table.shape[1] - 1)], -1)  # fmt: skip
                x[name][mine] = -1
                x[name][row : row + n] = np.where(page < 0, -1, page * PAGE + pos % PAGE)
        history = x["sampler.history"]
        h = history.shape[1]
        whole = np.concatenate([np.full(h, -1), text, guesses]).astype(np.int32)
        for k in range(n):
            history[row + k] = whole[length + k : length + k + h]
    return told


def put_row(
    x: MutableMapping[str, np.ndarray], row: int, line: int, pos: int, text: np.ndarray, draw: int
) -> None:
    """A row of a draft's step, after which token pos + 1 of a text is drawn; negative: none."""
    x["tokens"][row] = text[pos] if pos >= 0 else -1
    x["pos"][row], x["seq"][row] = pos, line if pos >= 0 else -1
    x["sampler.rng"][row, 1] = draw
    for name in x:
        if name.startswith("rows."):
            table = x["table." + name.removeprefix("rows.")]
            page = int(table[line, pos // PAGE]) if 0 <= pos < PAGE * table.shape[1] else -1
            x[name][row] = -1 if page < 0 else page * PAGE + pos % PAGE
    h = x["sampler.history"].shape[1]
    before = text[max(0, pos + 1 - h) : pos + 1]
    x["sampler.history"][row] = [*[-1] * (h - len(before)), *before]


def draft_first(
    x: MutableMapping[str, np.ndarray], checks: MutableMapping[str, np.ndarray],
    lines: np.ndarray, texts: np.ndarray,
) -> None:  # fmt: skip
    """What `draft_first` does to the inputs x of a draft's first step; checks: of the round."""
    for i, (row, n_rows, length, _, _, number, _, wanted) in enumerate(lines.tolist()):
        for k in range(2 if n_rows else 0):
            pos = length - 2 + k if wanted else -1
            put_row(x, 2 * i + k, i, pos, texts[number], checks["sampler.rng"][row, 1])


def draft_next(
    sampled: np.ndarray, x: MutableMapping[str, np.ndarray],
    checks: MutableMapping[str, np.ndarray], lines: np.ndarray, texts: np.ndarray, known: bool,
) -> None:  # fmt: skip
    """What `draft_next` does to the inputs x of a draft's next step and to those of the round.
    sampled: of each sequence the last row's token. known: whether the guesses were prepared."""
    for i, line in enumerate(lines):
        row, n_rows, length, _, _, number, made, wanted = line.tolist()
        if not n_rows:
            continue
        text, draw = texts[number], checks["sampler.rng"][row, 1] + made + 1
        if made < wanted:
            text[length + made] = sampled[i]
            line[6] += 1
        put_row(x, i, i, length + made if made + 1 < wanted else -1, text, draw)
        if made < wanted and not known:
            checks["tokens"][row + 1 + made] = sampled[i]
            h = checks["sampler.history"].shape[1]
            before = text[max(0, length + made + 1 - h) : length + made + 1]
            checks["sampler.history"][row + 1 + made] = [*[-1] * (h - len(before)), *before]


def arrays(keep: RoundMemory) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """lines, texts and what is prepared, where the host reaches them."""
    lines, texts, prepared = (
        None if b is None else b.host().view(np.int32)  # type: ignore[union-attr]
        for b in (keep.lines, keep.texts, keep.prepared)
    )
    assert lines is not None and texts is not None
    return (
        lines.reshape(-1, len(keep.LINE)),
        texts.reshape(-1, keep.capacity),
        None if prepared is None else prepared.reshape(-1, keep.capacity),
    )


class RoundLoop(Loop):
    """Runs every round when it is launched, long before its tokens are asked for."""

    def __init__(
        self, bound: BoundPlan, keep: RoundMemory, drafts: Sequence[BoundPlan] = ()
    ) -> None:
        super().__init__(bound)
        self._keep, self._drafts = keep, [Loop(b) for b in drafts]
        self.depth = self.drafted = 0

    def start(self) -> None:
        super().start()
        n = next(a.shape[0] for name, a in self.inputs.items() if name.startswith("table."))
        lines, texts, prepared = arrays(self._keep)
        self.lines, self.texts, self.prepared = lines[:n], texts, prepared
        for d in self._drafts:
            d.start()
        self._accept(self.inputs, True)

    def launch(self) -> None:
        for i in range(self.depth):
            two, one = self._drafts
            sampled = one.run() if i else two.run()[1::2]
            draft_next(sampled, one.inputs, self.inputs, self.lines, self.texts,
                       self.prepared is not None)  # fmt: skip
            self.drafted += 1
        super().launch()

    def _end(self, sampled: np.ndarray) -> np.ndarray:
        return self._accept({**self.inputs, "token": sampled}, False)

    def _accept(self, mine: MutableMapping[str, np.ndarray], begins: bool) -> np.ndarray:
        told = accepted(mine, self.lines, self.texts, self.prepared, begins, bool(self._drafts))
        if self._drafts:
            draft_first(self._drafts[0].inputs, self.inputs, self.lines, self.texts)
        return told


def install_rounds(monkeypatch: pytest.MonkeyPatch) -> list[RoundLoop]:
    """Give every plan such a loop; returns those made."""
    made: dict[tuple[int, ...], RoundLoop] = {}
    found: list[RoundLoop] = []

    def loop_of(bound: BoundPlan, keep: RoundMemory, drafts: Sequence[BoundPlan] = ()) -> Any:
        key = id(bound), *map(id, drafts)
        if key not in made:
            made[key] = RoundLoop(bound, keep, drafts)
            found.append(made[key])
        return made[key]

    monkeypatch.setattr(BoundPlan, "round_loop", loop_of)
    return found
