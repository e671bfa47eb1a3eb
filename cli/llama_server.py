"""Options of llama-server without a meaning of their own here."""

from __future__ import annotations

from .llama_other import Other

# Of llama-server.
_PROXY = "a proxy in front of it does that"
_REQUEST = "a request says so"
_STEPS = "--cache-tokens says how much is kept"
_AGENT = "tools are the client's: a request names them"
_BROWSER = "--cors-origins says whose pages may call the server"
_PRESET = "-hf names the model"
TAKEN_FOR_SERVER = (
    Other("-v --verbose --log-verbose", 0, None),
    Other("--ui --webui", 0, None),
    Other("--no-perf --perf", 0, None),
    Other("--models-autoload", 0, None),
    Other("--no-agent -no-ag", 0, None),
    Other("--no-ui-mcp-proxy --no-webui-mcp-proxy", 0, None),
    Other("--no-cors-credentials", 0, None),
    Other("--no-escape", 0, "requests say their texts as they are"),
    Other("--keep", 1, "an answer ends where the context does, and nothing is left out"),
    Other("--tags", 1, "models have a name: --alias"),
    Other("-cms --checkpoint-min-step", 1, _STEPS),
    Other("--cache-idle-slots --no-cache-idle-slots", 0, _STEPS),
    Other("-no-kvu --no-kv-unified", 0, "sequences share the pages of one cache"),
    Other("-cb --cont-batching", 0, None),
    Other("--metrics", 0, None),
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
    Other("--grammar", 1, f"{_REQUEST}: grammar"),
    Other("--grammar-file", 1, f"{_REQUEST}: grammar"),
    Other("-j --json-schema", 1, f"{_REQUEST}: response_format"),
    Other("-jf --json-schema-file", 1, f"{_REQUEST}: response_format"),
    Other("-r --reverse-prompt", 1, f"{_REQUEST}: stop"),
    Other("-sp --special", 0, "answers are without control tokens"),
    Other("--skip-chat-parsing", 0, "--reasoning-format none leaves thoughts in the text"),
    Other("--reasoning-budget-message", 1, "thoughts that are ended end with their mark alone"),
    Other("--context-shift", 0, "an answer ends where the context does"),
    Other("--kv-unified-per-slot", 1, "-c is a sequence's limit, --cache-tokens that of all"),
    Other("--spm-infill", 0, "there is no endpoint /infill"),
    Other("--embd-normalize", 1, f"{_REQUEST}: normalize"),
    Other("--reuse-port", 0, _PROXY),
    Other("--cors-methods --cors-headers", 1, _BROWSER),
    Other("--cors-credentials", 0, _BROWSER),
    Other(
        "--ui-config --webui-config --ui-config-file --webui-config-file", 1, "the page has none"
    ),
    Other("--ui-mcp-proxy --webui-mcp-proxy", 0, _PROXY),
    Other("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", 1, _AGENT),
    Other("-ag --agent", 0, _AGENT),
    Other("--sse-ping-interval", 1, "streams have no pings"),
    Other("--media-path", 1, "only text is supported"),
    Other("--models-preset", 1, "-m or -hf names each model"),
    Other("--no-models-autoload", 0, "a model is loaded when it is asked for"),
    Other("--embd-gemma-default", 0, _PRESET),
    *(Other(f"--fim-qwen-{size}-default", 0, _PRESET) for size in ("1.5b", "3b", "7b", "30b")),
    *(Other(f"--fim-qwen-{size}-spec", 0, _PRESET) for size in ("7b", "14b")),
    Other("--ssl-key-file", 1, _PROXY),
    Other("--ssl-cert-file", 1, _PROXY),
    Other("--api-prefix", 1, _PROXY),
    Other("--path", 1, _PROXY),
    Other("--props", 0, "what a server is started with stays"),
    Other("--pooling", 1, f"{_REQUEST}: pooling"),
    Other("--reasoning-budget", 1, f"{_REQUEST}: max_completion_tokens"),
    Other("--no-prefill-assistant", 0, "an assistant's last message is gone on with"),
    Other("--slot-save-path", 1, "`gguflow chat` saves conversations"),
    Other("--rerank --reranking", 0, "there are no models that rank"),
    Other("--models-dir", 1, "-m or -hf names each model"),
    Other("--models-max", 1, "--models-memory is the limit of models together"),
)
