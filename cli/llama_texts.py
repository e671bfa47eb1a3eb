"""Options of llama.cpp that are for `generate` alone, or for `chat`."""

from __future__ import annotations

from .llama_other import Other

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
    Other("--reasoning-effort", 1, _CHAT),
    Other("--reasoning-preserve --no-reasoning-preserve", 0, _CHAT),
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
    Other("--in-prefix --in-suffix", 1, "they surround messages, which `gguflow chat` has"),
    Other("--in-prefix-bos", 0, "it is for messages, which `gguflow chat` has"),
)


# And the other way round.
TEXT = (
    Other("-no-cnv --no-conversation", 0, "`gguflow generate` continues a text"),
    Other("--prompt-cache", 1, "/save and /load keep a conversation"),
    Other("--prompt-cache-all", 0, "/save and /load keep a conversation"),
    Other("--prompt-cache-ro", 0, "/save and /load keep a conversation"),
    Other("--server-base", 1, "the model runs here; any client of OpenAI's API asks a server"),
    Other("-o --output --output-file", 1, "redirect standard output: >FILE"),
)
TAKEN_FOR_CHAT = (
    Other("-i --interactive", 0, None),
    Other("-if --interactive-first", 0, None),
    Other("--show-timings", 0, "timings are shown at the end, of all answers"),
    Other("-ctxcp --ctx-checkpoints --swa-checkpoints", 1, "there is one conversation"),
    Other("-cram --cache-ram", 1, "there is one conversation"),
    Other("-mli --multiline-input", 0, '""" begins and ends a message of several lines'),
    Other("--no-display-prompt", 0, None),
    Other("--display-prompt", 0, "answers are shown as they come, without their prompt"),
    Other("--verbose-prompt", 0, "`gguflow generate` lists a prompt's tokens"),
    Other("-sp --special", 0, "`gguflow generate` shows control tokens"),
    Other("--reasoning-format", 1, "/think show or hide says whether thoughts are shown"),
    Other("--skip-chat-parsing", 0, "/think show or hide says whether thoughts are shown"),
)
