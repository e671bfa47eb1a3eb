"""Arguments that several commands share: their names (llama.cpp's), ranges and meaning."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguflow.engine.limits import (
    ALL_LAYERS,
    AUTO_LAYERS,
    COMPACT_MODES,
    EQUAL_MODES,
    MAX_THREADS,
    SPARSE_MODES,
    SPLIT_MODES,
)

from .errors import UsageError
from .options_values import names, ratios
from .options_values import real as real
from .options_values import whole as whole
from .sampling_options import add_sampling as add_sampling
from .sampling_options import sampler_settings as sampler_settings

if TYPE_CHECKING:
    from gguflow.engine.options import Options

LAYER_WORDS = {"auto": AUTO_LAYERS, "-1": AUTO_LAYERS, "all": ALL_LAYERS, "-2": ALL_LAYERS}
MAX_LAYERS = 1 << 16  # that -ngl takes; more than a model has are all of them
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0")  # what the attention op reads


# -- values ----------------------------------------------------------------------------------------


def threshold(text: str) -> float:
    """Converter for a number or an infinity."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ArgumentTypeError(f"{text}: expected a number, inf or -inf")
    return value


def gib(text: str) -> int:
    """Converter for GiB above zero; gives bytes."""
    value = real(text)
    if not 0 < value <= 1 << 20:
        raise ArgumentTypeError(f"{text}: expected GiB, more than 0")
    return int(value * 2**30)


def cache_type(text: str) -> str:
    """Converter for an element type of the KV cache."""
    if text.lower() not in CACHE_TYPES:
        raise ArgumentTypeError(f"{text}: expected one of {', '.join(CACHE_TYPES)}")
    return text.lower()


def overrides(text: str) -> list[tuple[str, str]]:
    """Converter for `pattern=backend`, several joined by commas as llama.cpp has it."""
    pairs = []
    for part in text.split(","):
        pattern, equals, backend = part.rpartition("=")
        if not equals or not pattern or not backend:
            raise ArgumentTypeError(f"{part}: expected PATTERN=BACKEND")
        pairs.append((pattern, backend))
    return pairs


def threads(text: str) -> int | None:
    """-t: how many threads, None for -1, which is the default."""
    return None if text == "-1" else whole(1, MAX_THREADS)(text)


def gpu(text: str) -> int:
    """--device: a GPU's number, or its name as llama.cpp or --devices have it."""
    name = text.lower()
    try:
        return whole(0, 255)(name.removeprefix("cuda").removeprefix(":"))
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{text}: expected the number of a GPU, or CUDA0 and the like; several are for "
            "--devices, and none is used without -ngl"
        ) from None


def gpu_layers(text: str) -> int:
    """-ngl: a number of layers, `auto` (-1) or `all` (-2)."""
    return LAYER_WORDS[text] if text in LAYER_WORDS else whole(0, MAX_LAYERS)(text)


def cpu_experts(text: str) -> int:
    """--n-cpu-moe: a number of layers, or `auto`."""
    return AUTO_LAYERS if text == "auto" else whole(0, MAX_LAYERS)(text)


# -- groups ----------------------------------------------------------------------------------------


def add_model(p: ArgumentParser) -> None:
    """-m."""
    p.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        help="GGUF model (first shard of a split one), or ollama:NAME; default: the bundled model",
    )
    p.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        metavar="USER/REPO[:QUANT]",
        help="a model of the Hugging Face hub, fetched if it is not there",
    )
    p.add_argument("-hff", "--hf-file", metavar="FILE", help="which file of -hf's repository")
    p.add_argument(
        "-mu",
        "--model-url",
        metavar="URL",
        help="a model of any server, fetched if it is not there",
    )
    add_hub(p)


def add_hub(p: ArgumentParser | _ArgumentGroup) -> None:
    """How the hub is asked."""
    p.add_argument(
        "-hft", "--hf-token", metavar="TOKEN", help="who asks the hub (default: HF_TOKEN)"
    )
    p.add_argument(
        "--offline", action="store_true", help="of the hub's models, only those that are here"
    )


def add_random(p: ArgumentParser) -> None:
    """--random, besides -m."""
    p.add_argument(
        "--random",
        metavar="SHAPE:TYPE",
        help="random weights in a named shape instead of a file, e.g. tinyllama-1.1b:Q4_0",
    )


def adapter(text: str) -> tuple[str, float]:
    """FILE or FILE=SCALE."""
    file, equals, scale = text.rpartition("=")
    if not equals:
        return text, 1.0
    try:
        factor = float(scale)
    except ValueError:
        return text, 1.0  # a name with an equals sign in it
    if not file or not abs(factor) < 1e6:
        raise ArgumentTypeError(f"{text}: expected FILE or FILE=SCALE")
    return file, factor


def scaled_adapters(text: str) -> list[tuple[str, float]]:
    """FILE:SCALE, several joined by commas."""
    found = []
    for part in text.split(","):
        file, _, scale = part.rpartition(":")
        if not file:
            raise ArgumentTypeError(f"{part}: expected FILE:SCALE")
        factor = real(scale)
        if not abs(factor) < 1e6:
            raise ArgumentTypeError(f"{part}: expected FILE:SCALE")
        found.append((file, factor))
    return found


def add_engine(p: ArgumentParser) -> None:
    """How a model is run: context, batches, threads, cache types, placement."""
    g = p.add_argument_group("running")
    g.add_argument(
        "-c",
        "--ctx-size",
        type=whole(0),
        default=0,
        metavar="N",
        help="context size; 0 is what the model was trained with (default)",
    )
    g.add_argument(
        "-t",
        "--threads",
        type=threads,
        metavar="N",
        help="threads for generation; default, and -1: all processors",
    )
    g.add_argument(
        "-tb",
        "--threads-batch",
        type=threads,
        metavar="N",
        help="threads for prompts; default, and -1: as -t",
    )
    g.add_argument(
        "-b",
        "--batch-size",
        type=whole(1),
        default=2048,
        metavar="N",
        help="most tokens of prompts at a time: on their way at once with -sm layer (default 2048)",
    )
    g.add_argument(
        "-ub",
        "--ubatch-size",
        type=whole(1),
        default=512,
        metavar="N",
        help="most tokens computed at a time, at most -b (default 512)",
    )
    for short, name, what in (("-ctk", "k", "keys"), ("-ctv", "v", "values")):
        g.add_argument(
            short,
            f"--cache-type-{name}",
            type=cache_type,
            default="f16",
            metavar="TYPE",
            help=f"type of cached {what}: {', '.join(CACHE_TYPES)} (default f16)",
        )
    add_gpu_layers(g)
    add_device(g)
    add_sparse(g)
    g.add_argument(
        "--lora",
        type=adapter,
        action="append",
        default=[],
        metavar="FILE[=SCALE]",
        help="add a LoRA adapter (GGUF), times a scale; can be given again",
    )
    g.add_argument(
        "--lora-scaled",
        dest="lora",
        type=scaled_adapters,
        action="extend",
        metavar="FILE:SCALE,...",
        help="the same as llama.cpp has it",
    )
    g.add_argument("--no-fuse", action="store_true", help="run every op by itself, to bisect")
    g.add_argument(
        "--no-weight-cache",
        action="store_true",
        help="do not keep repacked weights on the disk for the next start, nor look for them",
    )
    g.add_argument(
        "--mlock",
        action="store_true",
        help="keep the processor's weights in memory, as far as the system's limit allows",
    )
    g.add_argument(
        "--no-warmup", action="store_true", help="no effect here: generation has no warmup run"
    )


def add_sparse_mode(p: ArgumentParser | _ArgumentGroup) -> None:
    """Which neurons of a ReLU model are skipped."""
    p.add_argument(
        "--sparse",
        choices=SPARSE_MODES,
        default="auto",
        help="ReLU models: skip neurons by a predictor (predict), by the gate (exact) or not at "
        "all (off); auto: what measures fastest on the backend that runs the layers",
    )
    p.add_argument(
        "--sparse-threshold",
        type=threshold,
        metavar="X",
        help="skip neurons that the predictor scores below this; -inf: none (default: the file's)",
    )
    p.add_argument("--predictor", metavar="FILE", help="predictors in a file of their own")


def add_sparse(p: ArgumentParser | _ArgumentGroup) -> None:
    """How a ReLU model runs: which neurons are skipped, and which a GPU keeps."""
    add_sparse_mode(p)
    p.add_argument(
        "--vram-budget",
        type=gib,
        default=0,
        metavar="GiB",
        help="ReLU models: use this much GPU memory in all; attention goes there first, then "
        "predictors, output head and as many neurons as fit",
    )
    p.add_argument(
        "--split", metavar="FILE", help="which neurons the GPU keeps (.gpuidx), instead of solving"
    )


def add_gpu_layers(p: ArgumentParser | _ArgumentGroup) -> None:
    """-ngl, for one number."""
    p.add_argument(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=gpu_layers,
        default=0,
        metavar="N",
        help="layers to run on the GPU: a number, auto or -1 (as many as fit), or all (default 0)",
    )


def add_equal_bits(p: ArgumentParser | _ArgumentGroup) -> None:
    """The flag of `Options.equal_bits`."""
    p.add_argument(
        "--equal-bits",
        nargs="?",
        choices=EQUAL_MODES,
        const=EQUAL_MODES[0],
        default=False,
        help="GPUs: a sequence has the same bits alone and among any others, which is slower; with "
        "quantized weights fast for few sequences at once (default where it is given) or for many",
    )


def add_device(p: ArgumentParser | _ArgumentGroup) -> None:
    """--device, --devices with how a model is split over them, -ot, and what devices are told."""
    p.add_argument(
        "--device",
        "-dev",
        "-mg",
        "--main-gpu",
        type=gpu,
        default=0,
        metavar="N",
        help="which GPU (default 0)",
    )
    p.add_argument("--devices", type=names, default=(), metavar="LIST",
                   help="several to run on, such as cuda:0,cuda:1, or auto: as many GPUs as are "
                   "forecast to gain something")  # fmt: skip
    p.add_argument("-sm", "--split-mode", choices=(*SPLIT_MODES, "row"), default="layer",
                   help="with --devices: whole layers on each in turn, or a part of every layer on "
                   "each at once, for which row is another name (default layer)")  # fmt: skip
    p.add_argument("-ts", "--tensor-split", type=ratios, default=(), metavar="LIST",
                   help="with --devices: their shares, such as 3,1 (default equal)")  # fmt: skip
    p.add_argument(
        "-ot",
        "--override-tensor",
        type=overrides,
        action="append",
        default=[],
        metavar="RE=BACKEND",
        help="place the tensors and ops in whose name RE is found on a backend; comma-separated",
    )
    add_equal_bits(p)
    p.add_argument(
        "--compact-weights",
        choices=COMPACT_MODES,
        default="auto",
        help="GPUs: 16-bit weights in 15 bits too, which makes single rows faster, and quantized "
        "ones as tensor cores want them, which makes several (of more than one sequence, of "
        "drafts, or with --equal-bits many); the same values; auto (default): where a quarter of "
        "the memory left is enough",
    )
    add_experts(p)


def add_experts(p: ArgumentParser | _ArgumentGroup) -> None:
    """Where a mixture's experts lie."""
    g = p.add_mutually_exclusive_group()
    g.add_argument(
        "-cmoe",
        "--cpu-moe",
        dest="cpu_experts",
        action="store_const",
        const=ALL_LAYERS,
        default=0,
        help="mixtures of experts: all experts stay on the processor, whatever -ngl says",
    )
    g.add_argument(
        "-ncmoe",
        "--n-cpu-moe",
        dest="cpu_experts",
        type=cpu_experts,
        metavar="N",
        help="the same for those of the first N layers; auto: for all but the most used ones, as "
        "many as the GPU holds",
    )
    p.add_argument("-ncffn", "--n-cpu-ffn", dest="cpu_ffn", type=whole(0, 4096), default=0,
                   metavar="N", help="dense models: the feed-forward parts of the first N layers "
                   "stay on the processor")  # fmt: skip
    p.add_argument(
        "--expert-use",
        metavar="FILE",
        help="an importance matrix that says which experts are used most (default: counted once)",
    )


def add_prompt(p: ArgumentParser) -> None:
    """-p or -f."""
    g = p.add_mutually_exclusive_group()
    g.add_argument("-p", "--prompt", metavar="TEXT", help="prompt; - reads standard input")
    g.add_argument(
        "-f", "--file", metavar="FILE", help="read the prompt from a file; - for standard input"
    )
    p.add_argument(
        "--no-escape", action="store_true", help=r"take \n, \t, \\ and the like in -p as they are"
    )


def add_profile(p: ArgumentParser) -> None:
    """--profile."""
    p.add_argument(
        "--profile",
        metavar="FILE",
        help="write a per-op profile: .jsonl rows, .json trace for Perfetto, .html page",
    )


# -- what the engine takes -------------------------------------------------------------------------


def engine_options(args: Namespace) -> Options:
    """`Options` from add_engine's arguments."""
    from gguflow.engine.graph import dtype_by_name
    from gguflow.engine.options import Options

    return Options(
        n_ctx=args.ctx_size,
        n_batch=args.batch_size,
        n_ubatch=args.ubatch_size,
        n_threads=args.threads or 0,
        n_threads_batch=args.threads_batch or 0,
        k_type=dtype_by_name(args.cache_type_k),
        v_type=dtype_by_name(args.cache_type_v),
        fuse=not args.no_fuse,
        weight_cache=not args.no_weight_cache,
        mlock=args.mlock,
        n_gpu_layers=args.gpu_layers,
        lora=tuple(args.lora),
        **placement(args),
        **sparse(args),
    )


def sparse_mode(args: Namespace) -> dict[str, Any]:
    """The fields of `Options` from add_sparse_mode's arguments. Raises UsageError for what the form
    asked for has no use for."""
    if args.sparse in ("exact", "off"):
        for flag, given in (
            ("--sparse-threshold", args.sparse_threshold is not None),
            ("--predictor", args.predictor is not None),
        ):
            if given:
                raise UsageError(
                    f"--sparse {args.sparse} uses no predictor, so {flag} would do nothing: "
                    "give one of the two"
                )
    return {
        "sparse": args.sparse,
        "sparse_threshold": args.sparse_threshold,
        "predictor": args.predictor or "",
    }


def sparse(args: Namespace) -> dict[str, Any]:
    """The fields of `Options` from add_sparse's arguments."""
    return {**sparse_mode(args), "vram_budget": args.vram_budget, "split": args.split or ""}


def placement(args: Namespace) -> dict[str, Any]:
    """The fields of `Options` from add_device's arguments."""
    pairs = tuple(pair for pairs in args.override_tensor for pair in pairs)
    if args.cpu_ffn:
        layers = "|".join(map(str, range(args.cpu_ffn)))
        pairs += ((rf"^blk\.(?:{layers})\.ffn[._](?!norm|\w+_exps)", "cpu"),)
    if not args.devices:
        for flag, given in (("-sm", args.split_mode != "layer"), ("-ts", args.tensor_split)):
            if given:
                raise UsageError(f"{flag} is for several devices: name them by --devices")
    return {
        "device": args.device, "overrides": pairs, "devices": args.devices,
        "split_mode": "tensor" if args.split_mode == "row" else args.split_mode,
        "tensor_split": args.tensor_split,
        "cpu_experts": args.cpu_experts, "expert_use": args.expert_use or "",
        "equal_bits": args.equal_bits,
        "compact_weights": args.compact_weights,
    }  # fmt: skip


def check_profile(args: Namespace) -> Path | None:
    """The file for the profile, if one is asked for and can be written. Raises ProfilePathError."""
    if args.profile is None:
        return None
    from gguflow.engine.profile import check_path

    return check_path(args.profile)
