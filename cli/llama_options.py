"""Options of llama.cpp without a meaning of their own here: what they ask for is so anyway, or has
no counterpart. They are taken and named; what would change the text is refused by name."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import UsageError


class Other(NamedTuple):
    """flags: their names. values: how many words follow, "?" for one at most, "*" for any number.
    why: what is so instead; None where that is just what was asked for."""

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
    Other("--simple-io", 0, None),
    Other("-kvo --kv-offload", 0, None),
    Other("--op-offload", 0, None),
    Other("-ndio --no-direct-io", 0, None),
    Other("--no-skip-chat-parsing", 0, None),
    Other("-co --color", "?", "colours are for chat, where they follow the terminal"),
    Other("--no-jinja", 0, "chat templates are always rendered as they are"),
    Other("--mlock", 0, "weights are not locked in memory"),
    Other("--no-mmap", 0, "files are mapped; what kernels want otherwise is copied at load"),
    Other("-dio --direct-io", 0, "files are mapped"),
    Other("-lm --load-mode", 1, "files are mapped"),
    Other("-nr --no-repack", 0, "weights are always laid out for the kernels"),
    Other("-nkvo --no-kv-offload", 0, "the KV cache lies where its layers do"),
    Other("-dt --defrag-thold", 1, "the KV cache is in pages, which need no defragmentation"),
    Other("-np --parallel", 1, "there is one text; `gguflow serve` has many at once"),
    Other("--numa", 1, "threads are not placed by NUMA node"),
    Other("--poll", 1, "GGUFLOW_CPU_SPIN says how long idle threads spin"),
    Other("--poll-batch", 1, "GGUFLOW_CPU_SPIN says how long idle threads spin"),
    Other("--prio", 1, "threads keep the priority they have"),
    Other("--prio-batch", 1, "threads keep the priority they have"),
    Other("-C --cpu-mask", 1, "start it under taskset to choose processors"),
    Other("-Cr --cpu-range", 1, "start it under taskset to choose processors"),
    Other("--cpu-strict", 1, "start it under taskset to choose processors"),
    Other("-Cb --cpu-mask-batch", 1, "start it under taskset to choose processors"),
    Other("-Crb --cpu-range-batch", 1, "start it under taskset to choose processors"),
    Other("--cpu-strict-batch", 1, "start it under taskset to choose processors"),
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
    Other("-ptc --print-token-count", 1, "the timings at the end count tokens"),
    Other("-bs --backend-sampling", 0, "plain settings are sampled on the device anyway"),
    Other("-fit --fit", 1, "`-ngl auto` places as many layers as fit"),
    Other("-fitt --fit-target", 1, "`-ngl auto` places as many layers as fit"),
    Other("-fitc --fit-ctx", 1, "a context is as long as -c says"),
    Other("-cd --ctx-size-draft", 1, "a draft has its model's context"),
    Other("-td --threads-draft", 1, "a draft has its model's threads"),
    Other("-tbd --threads-batch-draft", 1, "a draft has its model's threads"),
    Other("-devd --device-draft", 1, "a draft is on its model's device, see -ngld"),
    Other("-ctkd --cache-type-k-draft", 1, "a draft's cache is of its model's types"),
    Other("-ctvd --cache-type-v-draft", 1, "a draft's cache is of its model's types"),
)

REFUSED = (
    Other("--usage", 0, "--help lists the options"),
    Other("--version", 0, "`gguflow --version` says it"),
    Other("--license", 0, "it is MIT's: the file LICENSE"),
    Other("--completion-bash", 0, "`gguflow completion bash` prints it"),
    Other("-cl --cache-list", 0, "`gguflow list` names the models that are there"),
    Other("--list-devices", 0, "`gguflow devices` lists them"),
    Other("-mu --model-url", 1, "fetch the file and give it to -m, or -hf USER/REPO"),
    Other(
        "-dr --docker-repo", 1, "models come from files, the hub (-hf) or ollama (-m ollama:NAME)"
    ),
    Other("-hfv -hfrv --hf-repo-v", 1, "only text is supported"),
    Other("-hffv --hf-file-v", 1, "only text is supported"),
    Other("--control-vector", 1, "control vectors are not supported"),
    Other("--control-vector-scaled", "*", "control vectors are not supported"),
    Other("--control-vector-layer-range", "*", "control vectors are not supported"),
    Other("--override-kv", 1, "`gguflow generate` and `chat` take it; here keys are the file's"),
    Other("--rope-scaling", 1, "scaling is what the file says"),
    Other("--rope-scale", 1, "scaling is what the file says"),
    Other("--rope-freq-base", 1, "scaling is what the file says"),
    Other("--rope-freq-scale", 1, "scaling is what the file says"),
    Other("--yarn-orig-ctx", 1, "scaling is what the file says"),
    Other("--yarn-ext-factor", 1, "YaRN mixes as its authors have it"),
    Other("--yarn-attn-factor", 1, "YaRN scales scores as its authors have it"),
    Other("--yarn-beta-slow", 1, "scaling is what the file says"),
    Other("--yarn-beta-fast", 1, "scaling is what the file says"),
    Other("-gan --grp-attn-n", 1, "self-extend is not supported"),
    Other("-gaw --grp-attn-w", 1, "self-extend is not supported"),
    Other("--adaptive-target", 1, "this sampler is not supported"),
    Other("--adaptive-decay", 1, "this sampler is not supported"),
    Other("-mm --mmproj", 1, "only text is supported"),
    Other("--image", 1, "only text is supported"),
    Other("--audio", 1, "only text is supported"),
    Other("--rpc", 1, "several machines are for `gguflow serve --ray`"),
    Other("--in-prefix", 1, "a chat template says what surrounds messages"),
    Other("--in-suffix", 1, "a chat template says what surrounds messages"),
    Other("--in-prefix-bos", 0, "a chat template says what surrounds messages"),
    Other("--log-file", 1, "redirect standard error: 2>FILE"),
    Other("-bf --binary-file", 1, "a prompt is UTF-8 text: -f"),
)


# What `generate` has no use for; `chat` has.
_CHAT = "`gguflow chat` is for conversations"
CONVERSATION = (
    Other("-cnv --conversation", 0, _CHAT),
    Other("-st --single-turn", 0, _CHAT),
    Other("-sys --system-prompt", 1, _CHAT),
    Other("-sysf --system-prompt-file", 1, _CHAT),
    Other("--chat-template", 1, _CHAT),
    Other("--chat-template-file", 1, _CHAT),
    Other("--chat-template-kwargs", 1, _CHAT),
    Other("-rea --reasoning", 1, _CHAT),
    Other("--reasoning-budget", 1, _CHAT),
    Other("--reasoning-budget-message", 1, _CHAT),
    Other("-i --interactive", 0, _CHAT),
    Other("-if --interactive-first", 0, _CHAT),
    Other("-mli --multiline-input", 0, _CHAT),
)
TAKEN_FOR_TEXT = (
    Other("--display-prompt", 0, None),
    Other("--reasoning-format", 1, "a text is shown as it is"),
    Other("--skip-chat-parsing", 0, None),
)


# And the other way round.
TEXT = (
    Other("-no-cnv --no-conversation", 0, "`gguflow generate` continues a text"),
    Other("--prompt-cache", 1, "/save and /load keep a conversation"),
    Other("--prompt-cache-all", 0, "/save and /load keep a conversation"),
    Other("--prompt-cache-ro", 0, "/save and /load keep a conversation"),
)
TAKEN_FOR_CHAT = (
    Other("-i --interactive", 0, None),
    Other("-if --interactive-first", 0, None),
    Other("-mli --multiline-input", 0, '""" begins and ends a message of several lines'),
    Other("--no-display-prompt", 0, None),
    Other("--display-prompt", 0, "answers are shown as they come, without their prompt"),
    Other("--verbose-prompt", 0, "`gguflow generate` lists a prompt's tokens"),
    Other("-sp --special", 0, "`gguflow generate` shows control tokens"),
    Other("--reasoning-format", 1, "/think show or hide says whether thoughts are shown"),
    Other("--skip-chat-parsing", 0, "/think show or hide says whether thoughts are shown"),
)


# Of llama-server.
_PROXY = "a proxy in front of it does that"
_REQUEST = "a request says so"
TAKEN_FOR_SERVER = (
    Other("-cb --cont-batching", 0, None),
    Other("--metrics", 0, None),
    Other("--webui", 0, None),
    Other("--embedding --embeddings", 0, None),
    Other("--cache-prompt", 0, None),
    Other("--prefill-assistant", 0, None),
    Other("-nocb --no-cont-batching", 0, "requests are always computed together"),
    Other("--slots", 0, "/ shows what runs, and no request needs a slot"),
    Other("--no-slots", 0, "there is no endpoint /slots"),
    Other("--no-cache-prompt", 0, "prompts that begin alike share what was computed"),
    Other("--cache-reuse", 1, "prompts that begin alike share what was computed"),
    Other("-cram --cache-ram", 1, "--cache-tokens says how much is kept"),
    Other("-ctxcp --ctx-checkpoints --swa-checkpoints", 1, "--cache-tokens says how much is kept"),
    Other("-sps --slot-prompt-similarity", 1, "no request needs a slot"),
    Other("--threads-http", 1, "one thread answers, and computes nothing"),
    Other("-kvu --kv-unified", 0, "sequences share the pages of one cache"),
    Other("--reasoning-format", 1, "thoughts are apart from the answer, as reasoning_content"),
)
FOR_SERVER = (
    Other("--ssl-key-file", 1, _PROXY),
    Other("--ssl-cert-file", 1, _PROXY),
    Other("--api-prefix", 1, _PROXY),
    Other("--path", 1, _PROXY),
    Other("--props", 0, "what a server is started with stays"),
    Other("--pooling", 1, f"{_REQUEST}: pooling"),
    Other("--chat-template-kwargs", 1, f"{_REQUEST}: chat_template_kwargs"),
    Other("-rea --reasoning", 1, f"{_REQUEST}: chat_template_kwargs"),
    Other("--reasoning-budget", 1, f"{_REQUEST}: max_completion_tokens"),
    Other("--no-prefill-assistant", 0, "an assistant's last message is gone on with"),
    Other("--slot-save-path", 1, "`gguflow chat` saves conversations"),
    Other("--rerank --reranking", 0, "there are no models that rank"),
    Other("--models-dir", 1, "-m or -hf names each model"),
    Other("--models-max", 1, "--models-memory is the limit of models together"),
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


def add_others(
    p: ArgumentParser, refused_too: Sequence[Other] = (), taken_too: Sequence[Other] = ()
) -> None:
    """Take the options that `p` has not got itself; `notes` of the arguments is what to say."""
    own = p._option_string_actions
    p.set_defaults(notes=[])
    for others, refused in (((*TAKEN, *taken_too), False), ((*REFUSED, *refused_too), True)):
        for other in others:
            flags = [flag for flag in other.flags.split() if flag not in own]
            if flags:
                p.add_argument(*flags, dest="notes", action=_Named, other=other, refused=refused)
