"""Exit codes, and which error gets which."""

from __future__ import annotations

import errno
import re
import sys

from gguflow.engine.harmless import one_line

OK = 0
INTERNAL = 1
BAD_ARGUMENT = 2
BAD_FILE = 3
NO_RESOURCES = 4
CHECK_FAILED = 5
INTERRUPTED = 130

EXIT_CODES = {
    OK: "success",
    INTERNAL: "unexpected internal error",
    BAD_ARGUMENT: "bad argument",
    BAD_FILE: "bad or unsupported file or model",
    NO_RESOURCES: "out of resources: memory, disk, no usable GPU, a package to install, a prompt "
    "beyond the context, no cluster",
    CHECK_FAILED: "a check came out outside its tolerance; the report is complete",
    INTERRUPTED: "interrupted (Ctrl-C)",
}


class UsageError(Exception):
    """An argument that cannot be used; the message names it."""


class PackageError(Exception):
    """An optional package is not installed; the message says how to install it."""


# Looked up by name among the modules already imported: an error cannot be of a class whose module
# nobody has imported, and the check need not import the engine.
_CODES = (
    ("gguflow.engine.env", "EnvError", BAD_ARGUMENT),
    ("gguflow.engine.sampling", "SamplerError", BAD_ARGUMENT),
    ("gguflow.engine.serving.speculation", "SpeculationError", BAD_ARGUMENT),
    ("gguflow.engine.compile.place", "PlacementError", BAD_ARGUMENT),
    ("gguflow.engine.profile.errors", "ProfilePathError", BAD_ARGUMENT),
    ("gguflow.models.mixes", "MixError", BAD_ARGUMENT),
    ("gguflow.engine.backends.base", "BackendNameError", BAD_ARGUMENT),
    ("gguflow.engine.backends.cpu.native", "ThreadError", NO_RESOURCES),
    ("gguflow.engine.backends.cpu.native", "CpuLibraryError", BAD_ARGUMENT),
    ("gguflow.engine.gguf.errors", "GgufError", BAD_FILE),
    ("gguflow.engine.scaling.machine", "MachineError", BAD_FILE),
    ("gguflow.engine.profile.errors", "ProfileFileError", BAD_FILE),
    ("gguflow.models.base", "ModelError", BAD_FILE),
    ("gguflow.engine.convert.safetensors", "ConvertError", BAD_FILE),
    ("gguflow.models.chat", "ChatTemplateError", BAD_FILE),
    ("gguflow.engine.session_file", "SessionFileError", BAD_FILE),
    ("gguflow.engine.prompt", "ContextError", NO_RESOURCES),
    ("gguflow.engine.options", "OptionError", BAD_ARGUMENT),
    ("gguflow.engine.constraints.error", "ConstraintError", BAD_ARGUMENT),
    ("gguflow.engine.hub", "HubNameError", BAD_ARGUMENT),
    ("gguflow.engine.hub", "HubError", NO_RESOURCES),
    ("gguflow.engine.backends.cuda.errors", "CudaError", NO_RESOURCES),
    ("gguflow.engine.cluster.errors", "ClusterFileError", BAD_FILE),
    ("gguflow.engine.cluster.errors", "ClusterError", NO_RESOURCES),
    ("gguflow.engine.variants.relu.speeds", "SpeedError", NO_RESOURCES),
)


def exit_code(error: BaseException) -> int:
    """The exit code of an error; INTERNAL for those nobody foresaw."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, PackageError) or _is_lack(error):
        return NO_RESOURCES
    if isinstance(error, UsageError):
        return BAD_ARGUMENT
    for module, name, code in _CODES:
        known = getattr(sys.modules.get(module), name, None)
        if known is not None and isinstance(error, known):
            return code
    if isinstance(error, (MemoryError, OSError)):
        return NO_RESOURCES
    return INTERNAL


_LACKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# What libraries say where the system refuses them memory or a thread.
_SAID = ("can't start new thread", "cannot allocate memory", "failed to map segment")


def _is_lack(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised for, is that the machine gives no more: of memory,
    disk, files or threads. Whatever was being done then, and whoever says so."""
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        if isinstance(error, OSError) and error.errno in _LACKS:
            return True
        said = str(error).lower()
        if isinstance(error, ImportError | RuntimeError) and any(s in said for s in _SAID):
            return True
        error = error.__cause__ or error.__context__
    return False


# The engine's messages name fields of `Options` and `SamplerSettings` in backquotes; here they are
# flags.
FLAGS = {
    "n_ctx": "-c", "n_batch": "-b", "n_ubatch": "-ub", "n_threads": "-t", "n_threads_batch": "-tb",
    "k_type": "-ctk", "v_type": "-ctv", "n_gpu_layers": "-ngl", "device": "--device",
    "devices": "--devices", "split_mode": "-sm", "tensor_split": "-ts",
    "cpu_experts": "--n-cpu-moe", "expert_use": "--expert-use",
    "overrides": "-ot", "sparse": "--sparse", "sparse_threshold": "--sparse-threshold",
    "predictor": "--predictor", "vram_budget": "--vram-budget", "split": "--split",
    "lora": "--lora", "temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p",
    "min_p": "--min-p", "weight_cache": "--no-weight-cache", "equal_bits": "--equal-bits",
    "compact_weights": "--compact-weights",
    "mlock": "--mlock",
    "repeat_penalty": "--repeat-penalty", "repeat_last_n": "--repeat-last-n", "seed": "--seed",
    "presence_penalty": "--presence-penalty", "frequency_penalty": "--frequency-penalty",
    "typical_p": "--typical", "top_n_sigma": "--top-n-sigma", "samplers": "--samplers",
    "xtc_probability": "--xtc-probability", "xtc_threshold": "--xtc-threshold",
    "dry_multiplier": "--dry-multiplier", "dry_base": "--dry-base", "mirostat": "--mirostat",
    "dry_allowed_length": "--dry-allowed-length", "dry_penalty_last_n": "--dry-penalty-last-n",
    "dynatemp_range": "--dynatemp-range", "dynatemp_exponent": "--dynatemp-exp",
    "mirostat_tau": "--mirostat-ent", "mirostat_eta": "--mirostat-lr",
    "most": "--draft-max", "least": "--draft-min", "p_min": "--draft-p-min",
    "lookup_cache": "--lookup-cache",
}  # fmt: skip
_FIELD = re.compile(rf"`({'|'.join(FLAGS)})(?:=([^`]*))?`")


def with_flags(text: str) -> str:
    """A message of the engine with flags for fields: `sparse=exact` is --sparse exact."""

    def flag(m: re.Match[str]) -> str:
        return FLAGS[m[1]] if m[2] is None else f"{FLAGS[m[1]]} {m[2]}"

    return _FIELD.sub(flag, text)


def message(error: BaseException) -> str:
    """What to print of an error: one line."""
    text = one_line(with_flags(" ".join(str(error).split())))
    if exit_code(error) == INTERNAL:
        return f"{type(error).__name__}: {text} (this is a bug; --debug shows where)"
    if not text and isinstance(error, MemoryError):
        return "out of memory: the machine, or --max-memory, gives no more"
    return text or type(error).__name__
