"""How many tokens to guess: as many as measured acceptance and measured times say will pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gguflow.engine.dataclass import dataclass

GUESS, WEIGHT = 0.6, 1.0  # acceptance before anything is known, as if so many guesses had told
DOUBT = 0.5  # the same when guessing has lost before
KEEP = 0.93  # of what was known, a round later
ROW = 0.1  # what another row adds to a run, in runs of one row each, before it is measured
MARGIN = 1.02  # by which guessing has to win
FIRST_WAIT, LONGEST_WAIT = 32, 1024  # tokens without guesses, before the next try
TRY, TRIES = 2, 2  # guesses of that, and rounds: what they take and what comes of them now
CHECK = 64  # rounds of guesses from one plain run to the next, which shows what those take now
FOLLOWING = 4  # times as many where they follow each other, as it takes longer to begin again
FIRST = 3  # runs of which the shortest counts: with a longer one no other would be tried
LOWER, HIGHER = 0.5, 0.1  # weight of a new time: other work on the machine makes them longer only
SUDDEN = 2.0  # times so many times longer than expected were somebody else's


@dataclass
class Acceptance:
    """The share of guesses that come true; those of a while ago count less."""

    tried: float = WEIGHT
    true: float = WEIGHT * GUESS

    @property
    def rate(self) -> float:
        return self.true / self.tried

    def add(self, n_guessed: int, n_true: int) -> None:
        """A round's outcome. What follows a wrong guess says nothing."""
        self.tried = self.tried * KEEP + min(n_guessed, n_true + 1)
        self.true = self.true * KEEP + n_true

    def like(self) -> Acceptance:
        """What to expect of somebody new."""
        return Acceptance(WEIGHT, WEIGHT * self.rate)


def between(sizes: np.ndarray, points: Sequence[tuple[int, float]]) -> np.ndarray:
    """Seconds of runs of these sizes, from (rows, seconds) of some; beyond the last, its own."""
    rows, seconds = np.array(points).T
    found: np.ndarray = np.interp(sizes, rows, seconds)
    return found


class Clock:
    """Seconds of runs, by the rows of their plans.

    is_host: a plan's first run is slow; on a device, where it is captured, the second is as well.
    one_plan: for all numbers of rows.
    """

    def __init__(self, is_host: bool, one_plan: bool = False) -> None:
        self._seconds: dict[int, float] = {}
        self._seen: dict[int, int] = {}
        self._n_slow, self._one_plan = 1 if is_host else 2, one_plan

    def add(self, n: int, seconds: float) -> None:
        """A run of n rows took so long."""
        plan = 0 if self._one_plan else n
        seen = self._seen[plan] = self._seen.get(plan, 0) + 1
        if seen <= self._n_slow:
            return
        known = self._seconds.setdefault(n, seconds)
        if seen <= self._n_slow + FIRST:
            self._seconds[n] = min(known, seconds)
            return
        new = min(seconds, SUDDEN * known)
        self._seconds[n] = known + (LOWER if new < known else HIGHER) * (new - known)

    def known(self) -> list[tuple[int, float]]:
        """(rows, seconds) of all numbers that were run, ascending. Fewer never take longer."""
        found = sorted(self._seconds.items())
        for i in range(len(found) - 2, -1, -1):
            found[i] = found[i][0], min(found[i][1], found[i + 1][1])
        return found

    def seconds(self, n: int) -> float | None:
        """The time of n rows, by that of the next ones known. None where nothing is."""
        known = self.known()
        return float(between(np.array([n]), known)[0]) if known else None


class Times:
    """What runs take: plain ones, and those that check guesses.

    size: the rows of the plan that checks so many.
    """

    def __init__(self, size: Callable[[int], int], is_host: bool) -> None:
        self._size = size
        self._plain = Clock(is_host)
        # By whether they followed each other on the device, where plans are captured before.
        self._checked = Clock(is_host, is_host), Clock(True)
        self._follow = False  # whether the last ones did
        self._rounds = 0.0  # since the last plain run

    def ran_plain(self, n_lines: int, seconds: float) -> None:
        """A run without guesses, of a token for so many lines."""
        self._plain.add(n_lines, seconds)
        self._rounds = 0.0

    def ran(self, n_rows: int, seconds: float, n_runs: int = 1, follow: bool = False) -> None:
        """Runs that checked guesses took so long together; the time of making them is not in it.
        follow: whether the device made one after the other by itself."""
        self._follow = follow
        self._checked[follow].add(self._size(n_rows), seconds / n_runs)
        self._rounds += n_runs / FOLLOWING if follow else n_runs

    def plain(self, n_lines: int) -> float | None:
        """The seconds of a plain run; None when one should be made, to know."""
        return None if self._rounds >= CHECK else self._plain.seconds(n_lines)

    def checked(self, n: int, plain: float, n_guesses: int) -> np.ndarray:
        """The seconds of runs of 1 to n_guesses guesses for n lines; plain: without any."""
        known = self._checked[self._follow].known()
        points = [(n, plain), *(p for p in known if p[0] > n)]
        if len(points) == 1:
            slope = ROW * plain / n
        else:
            (a, t), (b, u) = points[-2:]
            slope = max(0.0, u - t) / (b - a)
        sizes = np.array([self._size(n + i + 1) for i in range(n_guesses)])
        beyond = np.maximum(0, sizes - points[-1][0]) * slope
        return between(sizes, points) + beyond


class Pace:
    """Lengths of the guesses of one drafter.

    most: guesses of a line. n_rows: of a run.
    """

    def __init__(self, most: int, n_rows: int, times: Times) -> None:
        self._most, self._n_rows, self._times = most, n_rows, times
        self._overall = Acceptance()
        self._lines: dict[int, Acceptance] = {}
        self._wait = FIRST_WAIT  # plain runs until the next try, once guessing loses
        self.waits = 0  # how many of them are left
        self._tries = 0  # how many of the next rounds are tries

    # -- what was seen ---------------------------------------------------------------------------

    def outcome(self, key: int, n_guessed: int, n_true: int) -> None:
        """What came of a line's guesses."""
        self._of(key).add(n_guessed, n_true)
        self._overall.add(n_guessed, n_true)

    def forget(self, keys: set[int]) -> None:
        for key in keys:
            self._lines.pop(key, None)

    # -- what follows ----------------------------------------------------------------------------

    def lengths(self, keys: Sequence[int], room: Sequence[int], step_s: float) -> list[int]:
        """How many tokens to guess for each line; none for all where plain runs are faster, and for
        some while after that.

        room: how many it may be for each. step_s: the seconds of one more guess for all lines.
        """
        most = np.clip(room, 0, self._most)
        plain = self._times.plain(len(keys))
        if plain is None or self.waits or not most.any() or len(keys) >= self._n_rows:
            return [0] * len(keys)
        if self._tries:
            self._tries -= 1
            each = min(TRY, (self._n_rows - len(keys)) // len(keys))
            return [min(each, n) for n in most.tolist()]
        found = self._best(keys, most, plain, step_s)
        if any(found):
            self._wait = FIRST_WAIT
            return found
        self.waits, self._wait = self._wait, min(2 * self._wait, LONGEST_WAIT)
        self._tries = TRIES
        self._overall = Acceptance(DOUBT, DOUBT * GUESS)
        self._lines = {key: Acceptance(DOUBT, DOUBT * GUESS) for key in self._lines}
        return found

    def trying(self) -> int:
        """How many rounds are made with the lengths found last, whatever comes of them: those of a
        try, the others of which begin with the first one."""
        n, self._tries = 1 + self._tries, 0
        return n

    def pays(
        self, keys: Sequence[int], room: Sequence[int], step_s: float, n: int, by: float
    ) -> bool:
        """Whether guessing brings more tokens a second than plain runs, and no number of guesses
        `by` times as many as n in all, by what is known now; nothing follows from it."""
        most = np.clip(room, 0, self._most)
        plain = self._times.plain(len(keys))
        if plain is None or not most.any() or n < 1 or len(keys) >= self._n_rows:
            return False
        speeds, _ = self._speeds(keys, most, plain, step_s)
        best, mine = speeds.max(), speeds[min(n, len(speeds)) - 1]
        return bool(best >= MARGIN * len(keys) / plain and mine * by >= best)

    # -- inside ----------------------------------------------------------------------------------

    def _of(self, key: int) -> Acceptance:
        if key not in self._lines:
            self._lines[key] = self._overall.like()
        return self._lines[key]

    def _best(
        self, keys: Sequence[int], most: np.ndarray, plain: float, step_s: float
    ) -> list[int]:
        """The numbers of guesses with the most tokens a second, all 0 where plain runs win."""
        n = len(keys)
        speeds, line = self._speeds(keys, most, plain, step_s)
        i = int(np.argmax(speeds))
        if speeds[i] < MARGIN * n / plain:
            return [0] * n
        lengths: list[int] = np.bincount(line[: i + 1], minlength=n).tolist()
        return lengths

    def _speeds(
        self, keys: Sequence[int], most: np.ndarray, plain: float, step_s: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens a second with 1, 2, .. guesses, and whose each of these is."""
        n = len(keys)
        rates = np.array([self._of(key).rate for key in keys])
        place = np.arange(1, int(most.max()) + 1)
        # A guess comes true with all those before it: those most likely to are taken first.
        true = np.where(place <= most[:, None], rates[:, None] ** place, 0.0)
        order = np.argsort(-true, axis=None, kind="stable")
        order = order[: min(int(most.sum()), self._n_rows - n)]
        line, at = np.divmod(order, len(place))
        tokens = n + np.cumsum(true[line, at])
        depth = np.maximum.accumulate(at + 1)
        seconds = self._times.checked(n, plain, len(order)) + step_s * depth
        return tokens / seconds, line
