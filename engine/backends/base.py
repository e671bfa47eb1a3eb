"""What a backend is: where memory comes from, which ops it runs, how steps become a program.

Everything a backend may be asked is declared here. What only some have is a capability: an object
of its own, or None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol

import numpy as np

from gguflow.engine.compile import ChannelBytes, Meeting, Recv, Send, Step
from gguflow.engine.dataclass import dataclass, field
from gguflow.engine.found import modules_in
from gguflow.engine.graph import DType, Tensor
from gguflow.engine.limits import EqualBits

from .host import HostBuffer

if TYPE_CHECKING:
    from gguflow.engine.profile import PlanRow

    from .forms import Compactor, Packer

Live = Mapping[str, int]  # rows to compute, by the name that compile.batch_rows gives them


class BackendNameError(LookupError):
    """No backend, or no device of it, has that name."""


@dataclass(frozen=True)
class DeviceId:
    """One device: `cuda:1` is the second that backend `cuda` has."""

    kind: str
    index: int = 0

    @classmethod
    def parse(cls, text: str, index: int = 0) -> DeviceId:
        """`cuda:1`, or `cuda` for the device at `index`. Raises LookupError for anything else."""
        kind, colon, number = text.partition(":")
        if not kind.isidentifier() or (colon and not (number.isascii() and number.isdigit())):
            raise BackendNameError(f"no backend called {text!r}")
        return cls(kind, int(number) if colon else index)

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"


class Buffer(Protocol):
    """Device memory."""

    nbytes: int
    address: int  # as the device itself has it

    def host(self) -> np.ndarray | None:
        """The same bytes as a uint8 array, or None where the host cannot reach them.

        Memory of `alloc_shared` gives the host's copy.
        """

    def read(self, offset: int, nbytes: int, into: np.ndarray | None = None) -> np.ndarray:
        """Bytes as a uint8 array, a view where the host reaches them; waits for the device. into:
        where they may go instead of a new array."""

    def write(self, offset: int, data: np.ndarray) -> None:
        """Overwrite bytes from `offset` on with those of `data`; waits for the device."""

    def move(self, to: int, source: int, nbytes: int) -> None:
        """Copy bytes within the buffer, which do not overlap: before what is started next, and
        after what was started before."""


class Memory(Protocol):
    """Where the tensors of a plan live on one backend: owner tensor -> (buffer, byte offset)."""

    def locate(self, owner: Tensor) -> tuple[Buffer, int]: ...

    def is_packed(self, owner: Tensor) -> bool:
        """Whether a weight is stored in the backend's own layout instead of the file's."""

    @property
    def rows(self) -> Mapping[Tensor, str]:
        """What follows the batch's rows, and which: see `compile.batch_rows`."""


# -- meetings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transfer:
    """Bytes a device copies between its memory and pinned memory, or another device's. Both are
    addresses, multiples of 16; up to 15 bytes beyond `nbytes` may be copied too."""

    target: int
    source: int
    nbytes: int


@dataclass(frozen=True)
class Flag:
    """One side of a meeting: a 32-bit word that both reach, in pinned memory or the receiver's.

    A send copies, then sets it to 1, when what the steps before it made can be seen. A receive
    waits for it, takes it back to 0, then copies. Only devices copy. After `timeout_ns` nanoseconds
    `code`, not 0 itself, goes to the word at `given_up`; once that is not 0 nothing is waited for.
    """

    address: int
    given_up: int
    code: int
    timeout_ns: int
    transfers: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class Reduce:
    """One device's side of an all_reduce: it writes its part into the others' channels, waits for
    theirs in its own and adds all in the order of the ranks, so that all have the same bits.

    rank: of the device. channels: addresses by rank, zeroed before the first run and after one that
    was given up; each of `Links.channel_bytes(len(channels), sizes, shares)`. sizes, shares: of all
    exchanges that use them, see `compile.exchanges`. given_up, code, timeout_ns: as of a flag.
    """

    rank: int
    channels: tuple[int, ...]
    sizes: tuple[int, ...]
    shares: tuple[tuple[int, int], ...]
    given_up: int
    code: int
    timeout_ns: int


@dataclass(frozen=True)
class Meets:
    """Where a program meets others: flags of its sends and receives, and what it exchanges.

    memory: what all the addresses lie in, to be kept as long as something of the program may run.
    """

    flags: Mapping[Meeting, Flag] = field(default_factory=dict)
    reduces: Mapping[Tensor, Reduce] = field(default_factory=dict)
    memory: Sequence[Buffer] = ()


@dataclass(frozen=True)
class Links:
    """A backend whose programs can meet another's while both run.

    alloc_pinned: zeroed host memory that the device reaches at the same address; the device's
    programs then copy what crosses. None for the host's side, whose programs only wait and signal.
    reaches: whether this device's programs can write into the memory of another; once asked, they
    may. channel_bytes: memory of one of so many devices that exchange parts of such sizes
    (`compile.exchanges`); None where there is no all_reduce. shares_rows: whether sums of so many
    rows of so many elements, and their norms, are better shared out (all_reduce_norm); the last
    says whether only products with 16-bit weights read these. adopt: has
    the device reach memory of the host, whole pages, as if it were pinned, as long as the array
    lives; raises OSError where the system refuses. None where it cannot. card: which piece of
    hardware it is, as any process names it, for programs that wait on a card keep others from it;
    empty where that is nothing to care for.
    """

    alloc_pinned: Callable[[int], HostBuffer] | None = None
    reaches: Callable[[Backend], bool] = lambda other: False
    channel_bytes: ChannelBytes | None = None
    shares_rows: Callable[[int, int, bool], bool] = lambda m, d, floats: False
    adopt: Callable[[np.ndarray], None] | None = None
    card: str = ""


# -- programs --------------------------------------------------------------------------------------


class Ticks(NamedTuple):
    """Clock readings of a run: int64 [n_steps + 1] nanoseconds, the start and each step's end.

    of_host: whether the clock is the host's `perf_counter_ns`; a device's runs by itself.
    """

    ns: np.ndarray
    of_host: bool


class TokenLoop(Protocol):
    """Steps of a plan that feed their tokens to the next one, so that the host need not wait for
    them. Every row of the plan is alone in its sequence, or padding.

    A step writes the next one's `tokens`, `pos`, `rows` of every group of layers (by the group's
    page table, which has to have the pages of all steps that are launched), `sampler.rng` and
    `sampler.history`.
    """

    def start(self) -> None:
        """Take the plan's inputs as they are now. Nothing launched before is running then."""

    def launch(self) -> None:
        """Enqueue one step; at most 64 whose tokens were not waited for."""

    def wait(self, step: int) -> np.ndarray:
        """The tokens of a step, int32 [n], -1 for padding. Steps are counted from 1 since the
        start."""


@dataclass(frozen=True, eq=False)
class RoundMemory:
    """What rounds of guesses keep on a device.

    lines: i32 [n, len(LINE)], the sequences, in the order of the plan's page tables, by the names
    of LINE: their rows in the plan (the first, and how many, 0 for nobody), the tokens they have,
    the position behind the last one that has a page, the guesses below which none is tried, which
    text is theirs, and of the guesses that a draft makes for the next round how many there are and
    how many there shall be. texts: i32 [m, capacity], tokens, and behind them a draft's guesses.
    prepared: the same, of every position what is guessed there, negative for nothing; without it
    and without a draft n-grams of the text are looked up, as `speculation_lookup` does.
    """

    LINE: ClassVar = ("row", "n_rows", "length", "end", "least", "text", "made", "wanted")
    lines: Buffer
    texts: Buffer
    capacity: int
    prepared: Buffer | None = None


@dataclass(frozen=True, eq=False)
class DraftStep:
    """A step of a smaller model that guesses: its program on the same device, and its plan's inputs
    by name with the sampled tokens as `token`."""

    program: Program
    tensors: Mapping[str, Tensor]


class RoundLoop(TokenLoop, Protocol):
    """Steps that check guesses. depth: how many steps of the draft come before each of them."""

    depth: int


class Program(ABC):
    """Steps of one backend, ready to run again and again; the same from the first run on.

    kernels: per step, what runs it.
    """

    kernels: Sequence[str]

    def prepare(self, timed: bool = False) -> None:
        """Do before a run what need not be done in it: called for all programs that run side by
        side before the first of them starts."""
        return None

    @abstractmethod
    def start(self, timed: bool = False, live: Live | None = None) -> None:
        """Start a run. A device returns at once; the host, which computes on the calling thread,
        when it is done.

        timed: read the clock between steps. live: rows that count; trailing others may be left out.
        """

    @abstractmethod
    def finish(self) -> Ticks | None:
        """Wait for the end of the run; the readings of a timed one."""

    def rows(self, rows: Sequence[PlanRow]) -> list[PlanRow]:
        """Its rows in a profile, one for each reading of its clock. rows: those of its steps."""
        return [*rows]

    def token_loop(self, tensors: Mapping[str, Tensor]) -> TokenLoop | None:
        """Runs of this program of which each makes its tokens the next one's input; None where the
        device cannot do so.

        tensors: the plan's inputs by name, and the sampled tokens as `token`.
        """
        return None

    def round_loop(
        self,
        tensors: Mapping[str, Tensor],
        keep: RoundMemory,
        drafts: Sequence[DraftStep] = (),
    ) -> RoundLoop | None:
        """Runs of this program that check guesses, as `token_loop`: a sequence's rows lie side by
        side, its last token's and one a guess. A step takes the tokens that were chosen up to the
        first that was not guessed, and writes the next inputs with new guesses; the first inputs
        are made by `start`. Its tokens are -2 for guesses that did not come true.

        drafts: of a draft's first step of a round, with two rows a sequence, those of its last two
        tokens (the one before the last may have been a guess that the draft saw no row of), and of
        those that follow, with one; their inputs are written but for what changes."""
        return None

    def run(self) -> None:
        """Start and finish."""
        self.start()
        self.finish()

    def run_timed(self) -> Ticks:
        """The same with clock readings."""
        self.start(timed=True)
        ticks = self.finish()
        assert ticks is not None
        return ticks


class UnsupportedStepError(ValueError):
    """A step that a backend has no way to run: names both."""


def refuse(step: Step, backend: str) -> NoReturn:
    """Raises UnsupportedStepError."""
    if isinstance(step, Send | Recv):
        kind = "send" if isinstance(step, Send) else "receive"
        what = f"{kind} of {', '.join(t.name for t in step.meeting.values)}"
    else:
        what = f"{step.op} {step.name}"
    raise UnsupportedStepError(f"{backend} has no way to run {what}")


# -- capabilities ----------------------------------------------------------------------------------


class DeviceMemory(Protocol):
    """Memory that is apart from the host's: how much of it there is, and an exact forecast.

    unit: bytes that allocations are multiples of. row_unit: bytes that rows of quantized matrices
    begin at multiples of; planning then gives such weights strides with padding.
    """

    unit: int
    row_unit: int

    def room(self) -> tuple[int, int]:
        """(free, all) bytes."""

    def scratch_bytes(self, nodes: Sequence[Tensor]) -> int:
        """What the kernels of a plan with these nodes will share."""

    def reserve(self, nbytes: int, scratch: int) -> None:
        """Told before loading what will be allocated in all, and of that for kernels."""

    def trim(self) -> None:
        """Give back memory that was freed."""


class Clock(Protocol):
    """A device's own clock, for kernels on cold caches."""

    def prepare(self, nodes: Sequence[Tensor]) -> None:
        """Compile and load the kernels of these nodes, several at a time."""

    def cold(self, work: Program | Callable[[], Any], flush: Program, repeats: int) -> list[float]:
        """Microseconds of each of `repeats` runs of `work`, with `flush` run before each."""


Rival = tuple[str, Callable[[], Any]]  # library, what puts its work into the stream


class Converter(Protocol):
    """Rows to and from any element type with native code."""

    def encode(self, dtype: DType, x: np.ndarray) -> np.ndarray:
        """float32 [rows, n] -> uint8 [rows, row bytes]. ValueError for values that do not fit."""

    def decode(self, dtype: DType, raw: np.ndarray, n: int) -> np.ndarray:
        """uint8 bytes of rows of n elements -> float32 [rows, n]."""


class Backend(ABC):
    """One device and the kernels for it.

    id: the device. name: as placement has it, `cuda:1`, or `cpu` where there is one of a kind.
    space: memory space; tensors move between backends without a copy within one space. processor:
    what runs the kernels, in a word or two. n_threads: of the host that it computes with, 0 for
    none. n_alike: devices of this kind that the machine has. on_host: of memory that is apart,
    whether it is another host's, which computes as this one does. holds: whether weights placed on
    it are for this process to load. repeats_rows: whether `load_weight` takes the first rows of one
    whose others repeat them. n_made: programs and graphs that a device has made so far; a run that
    had to wait for one of them was slow.
    """

    id: DeviceId
    name: str
    space: str
    processor: str = ""
    n_threads: int = 0
    n_alike: int = 1
    n_made: int = 0
    repeats_rows: bool = False
    holds: bool = True
    on_host: bool = False
    memory: DeviceMemory | None = None
    links: Links | None = None
    clock: Clock | None = None
    # The node's operation on the same operands as a library does it, or None.
    rival: Callable[[Tensor, Memory], Rival | None] | None = None
    # Seconds that a node is expected to take, without running anything.
    costs: Callable[[Tensor], float] | None = None
    # Packs weights to where they can be kept.
    packer: Packer | None = None
    compactor: Compactor | None = None
    # The native quantizers.
    converter: Callable[[], Converter] | None = None

    @abstractmethod
    def describe(self) -> str:
        """The device and its kernels in one line, for `gguflow devices`."""

    @abstractmethod
    def supports(self, node: Tensor) -> bool:
        """Whether this backend has a kernel for the node's op, types and layout."""

    def supports_strides(self, node: Tensor) -> bool:
        """Whether its kernel for a node that it supports writes the result where the node's strides
        and offset say, in rows with gaps between them: its memory may be a part of another's."""
        return False

    def with_bits(self, equal_bits: EqualBits) -> Backend:
        """The same device for another model, with its own `Options.equal_bits`: programs of both
        take turns."""
        return self

    @abstractmethod
    def peaks(self) -> tuple[float | None, ...] | None:
        """What was measured, in the order of the fields of `engine.profile.Peaks`; None for a
        backend without roofs."""

    @abstractmethod
    def alloc(self, nbytes: int) -> Buffer:
        """Zeroed memory. Raises MemoryError with the figures."""

    @abstractmethod
    def alloc_shared(self, nbytes: int) -> Buffer:
        """Zeroed memory for a plan's inputs and small outputs. Its `host()` is never None: on a
        device it is a copy, which runs read inputs from and leave results in."""

    @abstractmethod
    def packed_bytes(self, weight: Tensor, users: Sequence[Tensor]) -> int:
        """Bytes of `weight` in this backend's own layout, or 0 to use it as it is in the file."""

    @abstractmethod
    def load_weight(self, weight: Tensor, raw: np.ndarray, packed: bool) -> Buffer:
        """Bring a weight's bytes (uint8, rows without gaps) to the device: with the weight's own
        strides, or repacked if `packed`. With `repeats_rows` they may be those of its first rows,
        which all others repeat."""

    @abstractmethod
    def lower(
        self,
        steps: Sequence[Step],
        memory: Memory,
        n_threads: int | None = None,
        meets: Meets | None = None,
    ) -> Program:
        """A program of these steps, everything it will run compiled and loaded.

        n_threads: for host backends. meets: with others while it runs, with `links` only.
        Raises UnsupportedStepError.
        """


def backend_names() -> list[str]:
    """Every backend there is a directory for; making one shows whether this machine can use it."""
    package = import_module("gguflow.engine.backends")
    return [m.name for m in modules_in(package.__path__) if m.ispkg]


def find_backend(name: str, options: Mapping[str, Any] | None = None) -> Backend:
    """The device `name`, `cuda:1`, of the backend in `gguflow.engine.backends.<kind>`.

    options: of all backends; each takes its own, others have no effect. Without a number, `device`
    among them is it.
    Raises BackendNameError when there is none by that name. The module's own errors pass through.
    """
    given = dict(options or {})
    wanted = DeviceId.parse(name, int(given.get("device") or 0))
    if wanted.kind not in backend_names():
        known = ", ".join(sorted(backend_names()))
        raise BackendNameError(f"no backend called {name!r}; there are {known}")
    module = import_module(f"gguflow.engine.backends.{wanted.kind}")
    backend: Backend = module.create(given | {"device": wanted.index})
    if ":" in name and backend.id != wanted:
        raise BackendNameError(f"no device called {name!r}: there is one {backend.name}")
    return backend
