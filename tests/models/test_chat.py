"""Chat templates: rendering, choosing one, and their errors."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizer_vocabs import CONTROL, bpe_metadata, spm_metadata

from gguflow.models.chat import ChatTemplate, ChatTemplateError
from gguflow.models.chat_templates import ALIASES, NAMED
from gguflow.models.tokenizer import Tokenizer

TURNS = [
    {"role": "system", "content": "Be kind"},
    {"role": "user", "content": " Hi "},
    {"role": "assistant", "content": " Hello! "},
    {"role": "user", "content": "Bye"},
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "Be kind\n\nUser:  Hi \nAssistant:  Hello! \nUser: Bye\nAssistant:"),
        (
            "chatml",
            "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\n Hello! <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "llama2",
            "[INST] <<SYS>>\nBe kind\n<</SYS>>\n\n Hi  [/INST] Hello! </s><s>[INST] Bye [/INST]",
        ),
        (
            "llama3",
            "<|start_header_id|>system<|end_header_id|>\n\nBe kind<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("mistral-v1", " [INST] Be kind\n\n Hi  [/INST]  Hello! </s> [INST] Bye [/INST]"),
        ("mistral-v3", "[INST] Be kind\n\n Hi [/INST] Hello!</s>[INST] Bye[/INST]"),
        ("mistral-v3-tekken", "[INST]Be kind\n\n Hi [/INST] Hello! </s>[INST]Bye[/INST]"),
        (
            "mistral-v7",
            "[SYSTEM_PROMPT] Be kind[/SYSTEM_PROMPT]"
            "[INST]  Hi [/INST]  Hello! </s>[INST] Bye[/INST]",
        ),
        (
            "zephyr",
            "<|system|>\nBe kind</s>\n<|user|>\n Hi </s>\n<|assistant|>\n Hello! </s>\n"
            "<|user|>\nBye</s>\n<|assistant|>\n",
        ),
        (
            "phi3",
            "<|system|>\nBe kind<|end|>\n<|user|>\n Hi <|end|>\n<|assistant|>\n Hello! <|end|>\n"
            "<|user|>\nBye<|end|>\n<|assistant|>\n",
        ),
        (
            "gemma",
            "<start_of_turn>user\nBe kind\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!"
            "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
        ),
        (
            "vicuna",
            "Be kind\n\nUSER:  Hi \nASSISTANT:  Hello! </s>\nUSER: Bye\nASSISTANT:",
        ),
    ],
)
def test_named_formats(name: str, expected: str) -> None:
    assert ChatTemplate.named(name, bos="<s>", eos="</s>").render(TURNS) == expected


def test_every_named_format_is_tested_and_every_alias_leads_to_one() -> None:
    assert set(ALIASES.values()) <= set(NAMED)
    assert len(NAMED) == 12


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "zephyr", "plain"])
def test_without_generation_prompt(name: str) -> None:
    template = ChatTemplate.named(name, eos="</s>")
    closed, opened = template.render(TURNS, add_generation_prompt=False), template.render(TURNS)
    assert opened.startswith(closed)
    assert len(opened) > len(closed)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ChatTemplateError, match="unknown chat template 'nope'.*chatml.*zephyr"):
        ChatTemplate.named("nope")


def test_the_environment_templates_are_written_for() -> None:
    source = (
        "{% for message in messages %}\n"
        "    {%- if loop.index0 == 1 %}{% continue %}{% endif %}\n"
        "    {% if loop.index0 == 3 %}{% break %}{% endif %}\n"
        "{{ bos_token }}{{ message['role'] }}={{ message.content | trim }}{{ eos_token }}\n"
        "{% endfor %}\n"
        "{{ {'b': 1, 'a': '<é>'} | tojson }}|{{ tools is none }}|{{ extra }}|"
        "{% generation %}{{ strftime_now('%Y') | length }}{% endgeneration %}"
    )
    rendered = ChatTemplate(source, bos="<s>", eos="</s>").render(TURNS, extra="more")
    assert rendered == (
        '<s>system=Be kind</s>\n<s>assistant=Hello!</s>\n{"b": 1, "a": "<é>"}|True|more|4'
    )


def test_tojson_indents() -> None:
    template = ChatTemplate("{{ tools | tojson(indent=2) }}")
    assert template.render(TURNS, tools=[{"n": 1}]) == '[\n  {\n    "n": 1\n  }\n]'


def test_rendering_leaves_the_messages_alone() -> None:
    turns = [dict(turn) for turn in TURNS]
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ messages.append(1) }}").render(turns)
    with pytest.raises(ChatTemplateError):
        ChatTemplate("{{ messages[0].update(role='x') }}").render(turns)
    assert turns == TURNS


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for %}", "chat template, line 1: Expected an expression"),
        ("a\nb{{ 1 | nope }}", "chat template, line 2: No filter named 'nope'"),
        ("{{ raise_exception('no\nsystem role') }}", "chat template: no system role"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{% include 'file' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_errors_are_one_line(source: str, expected: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source).render(TURNS)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("message", ["hi", {"content": "hi"}, None])
def test_a_message_needs_a_role(message: Any) -> None:
    with pytest.raises(ChatTemplateError, match="message 1 has no role"):
        ChatTemplate.named("chatml").render([TURNS[0], message])


KEY = "tokenizer.chat_template"


def test_choosing_a_template() -> None:
    metadata = spm_metadata()
    tokenizer = Tokenizer.from_metadata(metadata)

    def chosen(choice: str | None = None) -> str:
        template = ChatTemplate.for_model(metadata, tokenizer, choice)
        return template.render([{"role": "user", "content": "x"}])

    assert chosen() == "User: x\nAssistant:"
    metadata[KEY] = "{{ bos_token }}own{{ eos_token }}"
    metadata[f"{KEY}.tool_use"] = "tools"
    assert chosen() == "<s>own</s>"
    assert chosen("tool_use") == "tools"
    assert chosen("zephyr") == "<|user|>\nx</s>\n<|assistant|>\n"
    assert chosen("tinyllama") == chosen("zephyr")
    assert chosen("{{ messages[0].content }}!") == "x!"
    with pytest.raises(ChatTemplateError, match="unknown chat template 'nope'"):
        chosen("nope")
    metadata[KEY] = 3
    with pytest.raises(
        ChatTemplateError, match="tokenizer.chat_template: expected a string, found a int"
    ):
        chosen()
    metadata[KEY] = "{% if %}"
    with pytest.raises(ChatTemplateError, match="^tokenizer.chat_template, line 1: "):
        chosen()


@pytest.mark.parametrize(
    ("marker", "start"),
    [
        ("<|im_start|>", "<|im_start|>user"),
        ("<|start_header_id|>", "<|start_header_id|>user"),
        ("<start_of_turn>", "<start_of_turn>user"),
        ("[INST]", "[INST] x"),
        ("[other]", "User: x"),
    ],
)
def test_default_by_the_tokens_of_the_vocabulary(marker: str, start: str) -> None:
    metadata = bpe_metadata(special=((marker, CONTROL),))
    template = ChatTemplate.for_model(metadata, Tokenizer.from_metadata(metadata))
    assert template.render([{"role": "user", "content": "x"}]).startswith(start)


@pytest.mark.parametrize("source", ["{{ bos_token }}ab", "ab"])
@pytest.mark.parametrize("add_eos", [False, True])
def test_encode_gives_one_bos_and_no_eos(source: str, add_eos: bool) -> None:
    metadata = spm_metadata(add_eos_token=add_eos)
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate.for_model(metadata, tokenizer, source + "{# #}{{ '' }}")
    assert template.encode(tokenizer, TURNS) == [1, 261]


def test_encode_parses_special_tokens() -> None:
    metadata = bpe_metadata(special=(("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)))
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate.for_model(metadata, tokenizer)
    ids = template.encode(tokenizer, [{"role": "user", "content": "hello"}])
    start, end, hello = 261, 262, 259
    assert ids == [start, *b"user\n", hello, end, 10, start, *b"assistant\n"]
