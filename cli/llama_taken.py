"""Options of llama.cpp that every command of texts takes and names, or refuses by name."""

from __future__ import annotations

from .llama_other import Other

_PINNED = "start it under taskset to choose processors"
_SPIN = "GGUFLOW_CPU_SPIN says how long idle threads spin"
_GUESSES = "--lookup looks for the longest n-gram that fits, see --draft-max"
_SEEN = "only text is supported"
# What is so of a draft, and of guesses, which change no output.
DRAFTS = (
    Other("-cd --ctx-size-draft", 1, "a draft has its model's context"),
    Other("-td --threads-draft --spec-draft-threads", 1, "a draft has its model's threads"),
    Other(
        "-tbd --threads-batch-draft --spec-draft-threads-batch",
        1,
        "a draft has its model's threads",
    ),
    Other(
        "-devd --device-draft --spec-draft-device",
        1,
        "a draft is on its model's device, see -ngld",
    ),
    Other("-Cd --cpu-mask-draft --spec-draft-cpu-mask", 1, _PINNED),
    Other("-Crd --cpu-range-draft --spec-draft-cpu-range", 1, _PINNED),
    Other("--cpu-strict-draft --spec-draft-cpu-strict", 1, _PINNED),
    Other("-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch", 1, _PINNED),
    Other("-Crbd --cpu-range-batch-draft --spec-draft-cpu-range-batch", 1, _PINNED),
    Other("--cpu-strict-batch-draft --spec-draft-cpu-strict-batch", 1, _PINNED),
    Other("--prio-draft --spec-draft-prio", 1, "threads keep the priority they have"),
    Other("--prio-batch-draft --spec-draft-prio-batch", 1, "threads keep the priority they have"),
    Other("--poll-draft --spec-draft-poll", 1, _SPIN),
    Other("--poll-batch-draft --spec-draft-poll-batch", 1, _SPIN),
    Other("--draft-p-split --spec-draft-p-split", 1, "guesses are one line of tokens, no tree"),
    Other("--spec-draft-backend-sampling", 0, None),
    Other("--no-spec-draft-backend-sampling", 0, "a draft's guesses are chosen on its device"),
    Other("--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits", 1, _GUESSES),
    Other("--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match", 1, _GUESSES),
    *(
        Other(f"--spec-ngram-{form}-{what}", 1, _GUESSES)
        for form in ("simple", "map-k", "map-k4v")
        for what in ("size-n", "size-m", "min-hits")
    ),
)
# There are no pictures, sounds and films for these to say anything about.
MEDIA = (
    Other("--image-min-tokens --image-max-tokens --mtmd-batch-max-tokens", 1, _SEEN),
    Other("--video-fps --video-timestamp-interval --video-ffmpeg-dir", 1, _SEEN),
)

TAKEN = (
    *DRAFTS,
    *MEDIA,
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
    Other("--no-log-prefix --no-log-timestamps --no-log-jsonl", 0, None),
    Other("--mmproj-auto --no-mmproj --no-mmproj-auto", 0, None),
    Other("--mmproj-offload --no-mmproj-offload", 0, None),
    Other("-co --color", "?", "colours are for chat, where they follow the terminal"),
    Other("--no-jinja", 0, "chat templates are always rendered as they are"),
    Other("--no-mmap", 0, "files are mapped; what kernels want otherwise is copied at load"),
    Other("-dio --direct-io", 0, "files are mapped"),
    Other("-lm --load-mode", 1, "files are mapped"),
    Other("-lzm --lazy-mode", 1, "files are mapped, and rows of embeddings read when needed"),
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
    Other("--log-colors", "?", "the log has no colours"),
    Other("--log-prefix", 0, "the log has no prefixes"),
    Other("--log-timestamps", 0, "the log has no times"),
    Other("--no-perf-log", 0, None),
    Other("-ptc --print-token-count", 1, "the timings at the end count tokens"),
    Other("-bs --backend-sampling", 0, "plain settings are sampled on the device anyway"),
    Other("-fit --fit", 1, "`-ngl auto` places as many layers as fit"),
    Other("-fitt --fit-target", 1, "`-ngl auto` places as many layers as fit"),
    Other("-fitc --fit-ctx", 1, "a context is as long as -c says"),
)

REFUSED = (
    Other("--usage", 0, "--help lists the options"),
    Other("--version", 0, "`gguflow --version` says it"),
    Other("--license", 0, "it is MIT's: the file LICENSE"),
    Other("--completion-bash", 0, "`gguflow completion bash` prints it"),
    Other("-cl --cache-list", 0, "`gguflow list` names the models that are there"),
    Other("--list-devices", 0, "`gguflow devices` lists them"),
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
    Other("--video", 1, "only text is supported"),
    Other("-mmu --mmproj-url", 1, "only text is supported"),
    Other("-mmdev --mmproj-device", 1, "only text is supported"),
    Other("--spec-synth-len --spec-synth-rates", 1, "guesses are real ones"),
    Other("--log-jsonl", 0, "notes are lines of text, on standard error"),
    Other("--log-prompts-dir", 1, "prompts are not kept; --verbose-prompt lists one's tokens"),
    Other("--gpt-oss-20b-default", 0, "-hf ggml-org/gpt-oss-20b-GGUF names the model"),
    Other("--gpt-oss-120b-default", 0, "-hf ggml-org/gpt-oss-120b-GGUF names the model"),
    Other("--vision-gemma-4b-default --vision-gemma-12b-default", 0, "only text is supported"),
    Other("-lcs --lookup-cache-static", 1, "--lookup-cache is the file, and is added to"),
    Other("--rpc", 1, "several machines are for `gguflow serve --ray`"),
    Other("-bf --binary-file", 1, "a prompt is UTF-8 text: -f"),
)
