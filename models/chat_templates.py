"""Well-known chat formats, for files without a template and for choosing one by name.

None begins with BOS: the tokenizer adds it where the model wants it.
"""

from __future__ import annotations

_PLAIN = """
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- message.content + '\n\n' -}}
    {%- elif message.role == 'user' -%}
        {{- 'User: ' + message.content + '\n' -}}
    {%- else -%}
        {{- 'Assistant: ' + message.content + '\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""

_CHATML = """
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

_LLAMA3 = """
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' -}}
    {{- message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}
"""

_LLAMA2 = """
{%- set ns = namespace(open=false) -%}
{%- for message in messages -%}
    {%- if message.role in ('system', 'user') and not ns.open -%}
        {{- (bos_token if not loop.first else '') + '[INST] ' -}}
        {%- set ns.open = true -%}
    {%- endif -%}
    {%- if message.role == 'system' -%}
        {{- '<<SYS>>\n' + message.content + '\n<</SYS>>\n\n' -}}
    {%- elif message.role == 'user' -%}
        {{- message.content + ' [/INST]' -}}
    {%- else -%}
        {{- ' ' + message.content | trim + ' ' + eos_token -}}
        {%- set ns.open = false -%}
    {%- endif -%}
{%- endfor -%}
"""

# In `mistral-*`, outer is the space before [INST] and [/INST], inner the one after them.
_MISTRAL = """
{%- set ns = namespace(open=false) -%}
{%- for message in messages -%}
    {%- if message.role in ('system', 'user') and not ns.open -%}
        {{- 'OUTER[INST]INNER' -}}
        {%- set ns.open = true -%}
    {%- endif -%}
    {%- if message.role == 'system' -%}
        {{- message.content + '\n\n' -}}
    {%- elif message.role == 'user' -%}
        {{- message.content + 'OUTER[/INST]' -}}
    {%- else -%}
        {{- 'INNER' + message.contentTRIM + eos_token -}}
        {%- set ns.open = false -%}
    {%- endif -%}
{%- endfor -%}
"""

_MISTRAL_V7 = """
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- '[SYSTEM_PROMPT] ' + message.content + '[/SYSTEM_PROMPT]' -}}
    {%- elif message.role == 'user' -%}
        {{- '[INST] ' + message.content + '[/INST]' -}}
    {%- else -%}
        {{- ' ' + message.content + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

# Zephyr ends a message with EOS, Phi-3 with a token of its own.
_ZEPHYR = """
{%- for message in messages -%}
    {{- '<|' + message.role + '|>\n' + message.content + END + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}
"""

_GEMMA = """
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- set ns.system = ns.system + message.content | trim + '\n\n' -%}
    {%- else -%}
        {%- set role = 'model' if message.role == 'assistant' else message.role -%}
        {{- '<start_of_turn>' + role + '\n' -}}
        {%- if role != 'model' -%}
            {{- ns.system -}}
            {%- set ns.system = '' -%}
        {%- endif -%}
        {{- message.content | trim + '<end_of_turn>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
"""

_VICUNA = """
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- message.content + '\n\n' -}}
    {%- elif message.role == 'user' -%}
        {{- 'USER: ' + message.content + '\n' -}}
    {%- else -%}
        {{- 'ASSISTANT: ' + message.content + eos_token + '\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
"""


def _mistral(outer: str, inner: str, trim: str = "") -> str:
    return _MISTRAL.replace("OUTER", outer).replace("INNER", inner).replace("TRIM", trim)


NAMED: dict[str, str] = {
    "plain": _PLAIN,
    "chatml": _CHATML,
    "llama2": _LLAMA2,
    "llama3": _LLAMA3,
    "mistral-v1": _mistral(" ", " "),
    "mistral-v3": _mistral("", " ", " | trim"),
    "mistral-v3-tekken": _mistral("", ""),
    "mistral-v7": _MISTRAL_V7,
    "zephyr": _ZEPHYR.replace("END", "eos_token"),
    "phi3": _ZEPHYR.replace("END", "'<|end|>'"),
    "gemma": _GEMMA,
    "vicuna": _VICUNA,
}
ALIASES: dict[str, str] = {
    "llama-2": "llama2",
    "llama-3": "llama3",
    "llama3.1": "llama3",
    "llama3.2": "llama3",
    "qwen2": "chatml",
    "qwen3": "chatml",
    "smollm": "chatml",
    "mistral": "mistral-v3",
    "tinyllama": "zephyr",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "phi-3": "phi3",
}

# A vocabulary with this token was trained on this format.
MARKERS: tuple[tuple[str, str], ...] = (
    ("<|im_start|>", "chatml"),
    ("<|start_header_id|>", "llama3"),
    ("<start_of_turn>", "gemma"),
    ("[SYSTEM_PROMPT]", "mistral-v7"),
    ("[INST]", "mistral-v3"),
)
