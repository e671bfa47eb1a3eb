"""Options of llama.cpp without a meaning of their own here: what they ask for is so anyway, or has
no counterpart. They are taken and named; what would change the text is refused by name."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import UsageError


class Other(NamedTuple):
    """flags: their names. values: how many words follow, or "?" for one at most. why: what is so
    instead; None where that is just what was asked for."""

    flags: str
    values: int | str
    why: str | None


TAKEN = (
    Other("-fa --flash-attn", "?", None),  # attention is computed in tiles anyway
    Other("-e --escape", 0, None),
    Other("--no-context-shift", 0, None),
    Other("--jinja", 0, None),
    Other("--warmup", 0, None),
    Other("--perf", 0, None),
    Other("--mmap", 0, None),
    Other("--repack", 0, None),
    Other("--offline", 0, None),
    Other("--simple-io", 0, None),
    Other("-co --color", "?", "colours are for chat, where they follow the terminal"),
    Other("--no-jinja", 0, "chat templates are always rendered as they are"),
    Other("--mlock", 0, "weights are not locked in memory"),
    Other("--no-mmap", 0, "files are mapped; what kernels want otherwise is copied at load"),
    Other("-dio --direct-io", 0, "files are mapped"),
    Other("-nr --no-repack", 0, "weights are always laid out for the kernels"),
    Other("-nkvo --no-kv-offload", 0, "the KV cache lies where its layers do"),
    Other("--numa", 1, "threads are not placed by NUMA node"),
    Other("--poll", 1, "GGUFLOW_CPU_SPIN says how long idle threads spin"),
    Other("--poll-batch", 1, "GGUFLOW_CPU_SPIN says how long idle threads spin"),
    Other("--prio", 1, "threads keep the priority they have"),
    Other("--prio-batch", 1, "threads keep the priority they have"),
    Other("-C --cpu-mask", 1, "start it under taskset to choose processors"),
    Other("-Cr --cpu-range", 1, "start it under taskset to choose processors"),
    Other("--cpu-strict", 1, "start it under taskset to choose processors"),
    Other("--no-op-offload", 0, "ops run where their layer is"),
    Other("--swa-full", 0, "layers with a window keep their window"),
    Other("--no-host", 0, "there is no buffer to bypass"),
    Other("--check-tensors", 0, "`gguflow inspect` checks a file's tensors"),
    Other("--log-disable", 0, "-q is quiet"),
    Other("--log-colors", "?", "the log has no colours"),
    Other("--log-prefix", 0, "the log has no prefixes"),
    Other("--log-timestamps", 0, "the log has no times"),
    Other("-lv --verbosity --log-verbosity", 1, "-q and -v say how much is told"),
    Other("--no-perf-log", 0, None),
    Other("-fit --fit", 1, "`-ngl auto` places as many layers as fit"),
)

REFUSED = (
    Other("--lora-scaled", 2, "--lora FILE=SCALE does that"),
    Other("--control-vector", 1, "control vectors are not supported"),
    Other("--control-vector-scaled", 2, "control vectors are not supported"),
    Other(
        "--override-kv", 1, "keys of the file are taken as they are; `gguflow inspect` shows them"
    ),
    Other("--rope-scaling", 1, "scaling is what the file says"),
    Other("--rope-scale", 1, "scaling is what the file says"),
    Other("--rope-freq-base", 1, "scaling is what the file says"),
    Other("--rope-freq-scale", 1, "scaling is what the file says"),
    Other("--yarn-orig-ctx", 1, "scaling is what the file says"),
    Other("--yarn-ext-factor", 1, "scaling is what the file says"),
    Other("--yarn-attn-factor", 1, "scaling is what the file says"),
    Other("--yarn-beta-slow", 1, "scaling is what the file says"),
    Other("--yarn-beta-fast", 1, "scaling is what the file says"),
    Other("-gan --grp-attn-n", 1, "self-extend is not supported"),
    Other("-gaw --grp-attn-w", 1, "self-extend is not supported"),
    Other("--adaptive-target", 1, "this sampler is not supported"),
    Other("--adaptive-decay", 1, "this sampler is not supported"),
    Other("-bs --backend-sampling", 0, "plain settings are sampled on the device anyway"),
    Other("-mm --mmproj", 1, "only text is supported"),
    Other("--image", 1, "only text is supported"),
    Other("--audio", 1, "only text is supported"),
    Other("--rpc", 1, "other machines are not supported"),
    Other("-sm --split-mode", 1, "-ot places layers on several GPUs"),
    Other("-ts --tensor-split", 1, "-ot places layers on several GPUs"),
    Other("-mg --main-gpu", 1, "--device says which GPU"),
    Other("-i --interactive", 0, "`gguflow chat` is for conversations"),
    Other("-if --interactive-first", 0, "`gguflow chat` is for conversations"),
    Other("-mli --multiline-input", 0, 'in `gguflow chat`, """ begins and ends several lines'),
    Other("--in-prefix", 1, "a chat template says what surrounds messages"),
    Other("--in-suffix", 1, "a chat template says what surrounds messages"),
    Other("--in-prefix-bos", 0, "a chat template says what surrounds messages"),
    Other("--log-file", 1, "redirect standard error: 2>FILE"),
    Other("-bf --binary-file", 1, "a prompt is UTF-8 text: -f"),
)


# What `generate` has no use for; `chat` has.
CONVERSATION = (
    Other("-cnv --conversation", 0, "`gguflow chat` is for conversations"),
    Other("-st --single-turn", 0, "`gguflow chat` is for conversations"),
    Other("-sys --system-prompt", 1, "`gguflow chat` is for conversations"),
    Other("-sysf --system-prompt-file", 1, "`gguflow chat` is for conversations"),
    Other("--chat-template", 1, "`gguflow chat` is for conversations"),
    Other("--context-shift", 0, "a text ends where the context does; `gguflow chat` goes on"),
    Other("--keep", 1, "a text ends where the context does; `gguflow chat` goes on"),
)


# And the other way round.
TEXT = (
    Other("-no-cnv --no-conversation", 0, "`gguflow generate` continues a text"),
    Other("-f --file", 1, "/file sends a file; `gguflow generate -f` continues one"),
    Other("--prompt-cache", 1, "/save and /load keep a conversation"),
    Other("--grammar", 1, "`gguflow generate` and `gguflow serve` have grammars"),
    Other("--grammar-file", 1, "`gguflow generate` and `gguflow serve` have grammars"),
    Other("-j --json-schema", 1, "`gguflow generate` and `gguflow serve` have grammars"),
    Other("-jf --json-schema-file", 1, "`gguflow generate` and `gguflow serve` have grammars"),
)


class _Named(argparse.Action):
    """Remembers what is to be said of an option, or refuses it."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, other: Other, refused: bool, default: Any
    ) -> None:
        nargs = None if other.values == 1 else other.values
        super().__init__(option_strings, dest, nargs=nargs, default=default, help=argparse.SUPPRESS)
        self.other, self.refused = other, refused

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        if self.refused:
            raise UsageError(f"{option}: {self.other.why}")
        if self.other.why is not None:
            said = f"note: {option} changes nothing: {self.other.why}"
            setattr(namespace, self.dest, [*getattr(namespace, self.dest), said])


def add_others(p: ArgumentParser, refused_too: Sequence[Other] = ()) -> None:
    """Take the options that `p` has not got itself; `notes` of the arguments is what to say."""
    own = p._option_string_actions
    p.set_defaults(notes=[])
    for others, refused in ((TAKEN, False), ((*REFUSED, *refused_too), True)):
        for other in others:
            flags = [flag for flag in other.flags.split() if flag not in own]
            if flags:
                p.add_argument(*flags, dest="notes", action=_Named, other=other, refused=refused)
