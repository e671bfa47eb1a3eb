"""How a model is run: every setting that a plan or a session depends on."""

from __future__ import annotations

from typing import Literal, TypedDict

from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.graph import F16, DType, dtype_by_name
from gguflow.engine.limits import (
    ALL_LAYERS,
    COMPACT_MODES,
    EQUAL_MODES,
    MAX_DEVICES,
    MAX_SEQS,
    MAX_THREADS,
    MAX_TOKENS,
    SPARSE_MODES,
    SPLIT_MODES,
    EqualBits,
)


class OptionError(ValueError):
    """A field of `Options` out of its range: names it."""


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0")  # what attention reads


def _cache_type(name: str, value: DType | str) -> DType:
    if isinstance(value, str) and value.lower() in CACHE_TYPES:
        return dtype_by_name(value)
    if not isinstance(value, DType) or value.name.lower() not in CACHE_TYPES:
        given = value.name if isinstance(value, DType) else repr(value)
        raise OptionError(f"{name} {given}: expected one of {', '.join(CACHE_TYPES)}")
    return value


def _equal_mode(value: object) -> EqualBits:
    if isinstance(value, bool):
        return "few" if value else False
    if value not in EQUAL_MODES:
        modes = ", ".join(f'"{m}"' for m in EQUAL_MODES)
        raise OptionError(f"equal_bits {value!r}: expected True or False, {modes}")
    return value  # type: ignore[return-value]


def _is_pair(x: object, second: tuple[type, ...]) -> bool:
    """Whether something is a pair of a text and one of some types."""
    if not isinstance(x, tuple | list) or len(x) != 2:
        return False
    return isinstance(x[0], str) and isinstance(x[1], second)


class OptionFields(TypedDict, total=False):
    """The fields of `Options` as keyword arguments."""

    n_ctx: int
    n_seqs: int
    n_cache: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    k_type: DType | str
    v_type: DType | str
    fuse: bool
    backends: tuple[str, ...]
    isa: str | None
    n_gpu_layers: int
    device: int
    devices: tuple[str, ...]
    split_mode: Literal["none", "layer", "tensor"]
    tensor_split: tuple[float, ...]
    overrides: tuple[tuple[str, str], ...]
    cpu_experts: int
    expert_use: str
    sparse: Literal["auto", "predict", "exact", "off"]
    sparse_threshold: float | tuple[float, ...] | None
    predictor: str
    vram_budget: int
    split: str
    lora: tuple[tuple[str, float], ...]
    weight_cache: bool
    equal_bits: EqualBits
    compact_weights: Literal["auto", "on", "off"]
    mlock: bool


@dataclass(frozen=True)
class Options:
    """How a model is run; the defaults are llama.cpp's.

    n_ctx: tokens of a sequence, 0 for what the model was trained with.
    n_seqs: sequences at once. n_cache: rows of the KV cache in all, 0 for n_ctx for every sequence.
    n_ubatch: tokens that a prompt is cut into; n_batch: the same, and where devices hold layers in
        turn, tokens on their way through them at once. Results do not depend on them.
    k_type, v_type: element types of cached keys and values; a name will do.
    n_threads, n_threads_batch: for single tokens and for prompts; 0 for all processors.
    n_gpu_layers: layers on the device, the output head counting as one; AUTO_LAYERS or
        ALL_LAYERS of `engine.limits` for what fits or everything. device: which one, by number.
    devices: several to run on, as "cuda:0": whole layers on each in turn (split_mode="layer"), or a
        part of every layer on each at once ("tensor"); "none": on the first. tensor_split: their
        shares, in proportion; none for equal ones.
    overrides: (regular expression, backend) pairs that place weights, states, inputs and nodes,
        before n_gpu_layers does; the first that is found anywhere in a name wins.
    cpu_experts: of a mixture of experts, the first layers so many whose experts stay on the host
        whatever n_gpu_layers says; ALL_LAYERS for all of them, AUTO_LAYERS for all but the most
        used ones, as many as the device holds. expert_use: an importance matrix that says which
        those are; else they are counted once, and the counts kept.
    sparse: how a ReLU model's layers run: "predict" and "exact" as in `variants.relu`, "off" for
        densely, "auto" for the fastest, by measurement, where one backend runs all layers
        (`variants.relu.form`); else for predicting when every layer has a predictor, else exactly.
    sparse_threshold: of the predictor's scores, one or one a layer; None for the file's.
    predictor: a file with predictors to use in place of the model's.
    vram_budget: bytes of device memory to use in all, 0 for no limit: a ReLU model's attention goes
        there, and as many of its neurons as fit. split: a file that says which neurons.
    lora: adapter files and the factor of each, for requests that give none of their own.
    weight_cache: whether weights that are repacked for the processor are kept on the disk, where
        the next start finds them.
    equal_bits: whether a GPU computes rows with the bits that they have among any others, which is
        slower (docs/equal-bits.md): with quantized weights "few" generated ones at once are fast
        then, or "many"; True is "few". On hosts they always have; other backends take no notice.
    compact_weights: whether a GPU has 16-bit weights in a form of fewer bytes too, from which a
        single row is generated faster, and, where there are several sequences or `equal_bits` is
        "many", quantized ones as tensor cores want them, from which up to 128 rows are, with the
        same values: "auto" where it takes at most a quarter of the memory that is left there
        (docs/compact-weights.md).
    mlock: whether the host's weights are locked in memory, as far as the system allows.
    """

    n_ctx: int = 0
    n_seqs: int = 1
    n_cache: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int = 0
    n_threads_batch: int = 0
    k_type: DType = F16
    v_type: DType = F16
    fuse: bool = True
    backends: tuple[str, ...] = ("cpu", "numpy")
    isa: str | None = None
    n_gpu_layers: int = 0
    device: int = 0
    devices: tuple[str, ...] = ()
    split_mode: Literal["none", "layer", "tensor"] = "layer"
    tensor_split: tuple[float, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    cpu_experts: int = 0
    expert_use: str = ""
    sparse: Literal["auto", "predict", "exact", "off"] = "auto"
    sparse_threshold: float | tuple[float, ...] | None = None
    predictor: str = ""
    vram_budget: int = 0
    split: str = ""
    lora: tuple[tuple[str, float], ...] = ()
    weight_cache: bool = True
    equal_bits: EqualBits = False
    compact_weights: Literal["auto", "on", "off"] = "auto"
    mlock: bool = False

    def with_fields(self, changes: OptionFields) -> Options:
        """The same with other values for some fields. Raises TypeError for names that are none."""
        known = OptionFields.__annotations__
        for name in changes:
            if name not in known:
                raise TypeError(f"no option is called {name!r}; there are {', '.join(known)}")
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def n_stages(self) -> int:
        """Devices that hold whole layers in turn."""
        return max(1, len(self.devices)) if self.split_mode == "layer" else 1

    @property
    def n_pieces(self) -> int:
        """Pieces of prompts that may be on their way at once: where each device has some layers,
        n_batch tokens, and a piece for each device at least."""
        return max(self.n_stages, self.n_batch // self.n_ubatch) if self.n_stages > 1 else 1

    def of_backends(self) -> dict[str, object]:
        """What a backend is made with, but for its number (`find_backend`)."""
        return {
            "n_threads": self.n_threads or None, "isa": self.isa, "equal_bits": self.equal_bits,
        }  # fmt: skip

    def __post_init__(self) -> None:
        for name, least, most in (
            ("n_ctx", 0, MAX_TOKENS),
            ("n_seqs", 1, MAX_SEQS),
            ("n_cache", 0, MAX_TOKENS),
            ("n_batch", 1, MAX_TOKENS),
            ("n_ubatch", 1, MAX_TOKENS),
            ("n_threads", 0, MAX_THREADS),
            ("n_threads_batch", 0, MAX_THREADS),
            ("vram_budget", 0, 1 << 50),
            ("device", 0, 255),
            ("n_gpu_layers", ALL_LAYERS, MAX_TOKENS),
            ("cpu_experts", ALL_LAYERS, MAX_TOKENS),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise OptionError(f"{name} {value!r}: expected a whole number {least} to {most}")
        for name in ("k_type", "v_type"):
            object.__setattr__(self, name, _cache_type(name, getattr(self, name)))
        object.__setattr__(self, "equal_bits", _equal_mode(self.equal_bits))
        for name, kind, what in (
            ("fuse", bool, "True or False"),
            ("weight_cache", bool, "True or False"),
            ("mlock", bool, "True or False"),
            ("expert_use", str, "a file's name"),
            ("predictor", str, "a file's name"),
            ("split", str, "a file's name"),
            ("isa", str | None, "a name or None"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise OptionError(f"{name} {getattr(self, name)!r}: expected {what}")
        for name, second, what in (
            ("overrides", (str,), "(regular expression, backend) pairs"),
            ("lora", (int, float), "(file, factor) pairs"),
        ):
            given = getattr(self, name)
            if not isinstance(given, tuple | list) or not all(_is_pair(x, second) for x in given):
                raise OptionError(f"{name} {given!r}: expected {what}")
        if self.sparse not in SPARSE_MODES:
            raise OptionError(f"sparse {self.sparse!r}: expected one of {', '.join(SPARSE_MODES)}")
        if self.compact_weights not in COMPACT_MODES:
            raise OptionError(
                f"compact_weights {self.compact_weights!r}: expected one of "
                f"{', '.join(COMPACT_MODES)}"
            )
        if self.split_mode not in SPLIT_MODES:
            raise OptionError(
                f"split_mode {self.split_mode!r}: expected one of {', '.join(SPLIT_MODES)}"
            )
        if len(set(self.devices)) != len(self.devices) or len(self.devices) > MAX_DEVICES:
            raise OptionError(f"devices {self.devices!r}: expected up to {MAX_DEVICES}, each once")
        shares = self.tensor_split
        if not all(isinstance(x, (int, float)) and 0 < x < 1e6 for x in shares):
            raise OptionError(f"tensor_split {shares!r}: expected numbers above 0")
        if shares and len(shares) != len(self.devices):
            raise OptionError(f"tensor_split: {len(shares)} shares for {len(self.devices)} devices")
        cut = self.sparse_threshold
        thresholds = cut if isinstance(cut, tuple) else () if cut is None else (cut,)
        if not all(isinstance(t, (int, float)) and t == t for t in thresholds):
            raise OptionError(f"sparse_threshold {cut!r}: expected a number, or one a layer")
        if not all(abs(f) < 1e6 for _, f in self.lora):
            raise OptionError(f"lora {self.lora!r}: expected finite factors")
        if self.vram_budget and self.compact_weights == "on":
            raise OptionError("`vram_budget` counts every byte: `compact_weights` has none left")
        if (self.vram_budget or self.split) and self.n_gpu_layers:
            raise OptionError(
                "`vram_budget` and `split` place a model on the device, as `n_gpu_layers` does: "
                "give one"
            )


def options_with(options: Options | None, changes: OptionFields) -> Options:
    """`options`, the defaults without them, with other values for some fields. Raises TypeError for
    what are no options."""
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options {options!r}: expected Options")
    return (options or Options()).with_fields(changes)


def draft_options(o: Options, n_gpu_layers: int, changes: OptionFields) -> Options:
    """How a draft model runs beside one that runs with `o` and so many layers on a device: whole on
    the first of several, unless its own layers are placed by `changes`. Without equal bits: guesses
    are checked, so that no text depends on theirs."""
    options = Options(
        n_ctx=o.n_ctx,
        n_seqs=o.n_seqs,
        n_cache=o.n_cache,
        n_batch=o.n_batch,
        n_ubatch=o.n_ubatch,
        n_threads=o.n_threads,
        n_threads_batch=o.n_threads_batch,
        fuse=o.fuse,
        weight_cache=o.weight_cache,
        compact_weights="off" if o.compact_weights == "off" else "auto",
        mlock=o.mlock,
        device=o.device,
        n_gpu_layers=ALL_LAYERS if n_gpu_layers else 0,
    )
    if o.devices and "n_gpu_layers" in changes:
        number = o.devices[0].partition(":")[2]
        options = replace(options, device=int(number) if number.isdigit() else 0)
    elif o.devices:
        options = replace(options, devices=o.devices[:1], split_mode="none")
    return options.with_fields(changes)
