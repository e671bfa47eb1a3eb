"""Answers taken apart: the same parts however the text is cut, and nothing lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gguflow.models.chat_parts import ChatForm, Part, ToolCall
from gguflow.models.chat_text import Markup, Text
from gguflow.models.chat_tools import functions

QWEN = "<think> </think> <tool_call> {}"
CALL = {"city": "Paris", "days": 2}


def joined(parts: list[Part]) -> list[Any]:
    """Texts of one kind that follow each other as one; calls as (name, arguments, id)."""
    found: list[Any] = []
    for p in (p for p in parts if not isinstance(p, Markup)):
        if isinstance(p, ToolCall):
            found.append((p.name, json.loads(p.arguments), p.id))
        elif found and isinstance(found[-1], list) and found[-1][0] == p.kind:
            found[-1][1] += p.text
        else:
            assert isinstance(p, Text)
            found.append([p.kind, p.text])
    return found


def parsed(form: ChatForm, answer: str, size: int, prompt: str = "", tools: bool = True) -> Any:
    parser = form.parser(prompt, tools)
    parts: list[Part] = []
    for i in range(0, len(answer), size):
        parts += parser.push(answer[i : i + size])
    parts += parser.finish()
    # Calls stand behind their text: no character is lost, and none comes twice.
    assert "".join(p.text for p in parts if isinstance(p, Text | Markup)) == answer
    assert tools or not any(isinstance(p, ToolCall) for p in parts)
    return joined(parts)


ARGS = json.dumps(CALL)
REASON, CONTENT = ["reasoning", "Hm. A < b"], ["content", "It is so."]
WEATHER = ("get_weather", CALL, None)
HARMONY = "<|start|> <|channel|> <|message|>"
CASES = {
    "content": (QWEN, "It is so.", [CONTENT]),
    "think": (QWEN, "<think>\nHm. A < b\n</think>\n\nIt is so.", [REASON, CONTENT]),
    "stray close": (QWEN, "Hm.</think>It is so.", [["content", "Hm.It is so."]]),
    "hermes": (QWEN, f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}\n</tool_call>',
               [WEATHER]),
    "two calls": (QWEN, "It is so.\n" + 2 * (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGS}}}\n</tool_call>\n'),
        [CONTENT, WEATHER, WEATHER]),
    "no call": (QWEN, "<tool_call>nonsense</tool_call>",
                [["content", "<tool_call>nonsense</tool_call>"]]),
    "cut off": (QWEN, '<tool_call>{"name": "get', [["content", '<tool_call>{"name": "get']]),
    "coder": ("<tool_call> <function=", "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
              "Paris\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
              [WEATHER]),
    "glm": ("<think> <tool_call> <arg_key>", "<think>Hm. A < b</think>\nIt is so.\n<tool_call>"
            "get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days"
            "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>", [REASON, CONTENT, WEATHER]),
    "mistral": ("[TOOL_CALLS]", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ARGS}, '
                '"id": "a1"}]', [("get_weather", CALL, "a1")]),
    "mistral 11": ("[TOOL_CALLS] [THINK]", "[THINK]Hm. A < b[/THINK]It is so.[TOOL_CALLS]"
                   f"get_weather[ARGS]{ARGS}", [REASON, CONTENT, WEATHER]),
    "llama": ('{"name": function name, "parameters"', f'{{"name": "get_weather", "parameters": '
              f"{ARGS}}}", [WEATHER]),
    "llama, an answer": ('{"name": function name, "parameters"', "{1, 2} is a set",
                         [["content", "{1, 2} is a set"]]),
    "python tag": ("<|python_tag|>", f'<|python_tag|>{{"name": "get_weather", "parameters": '
                   f"{ARGS}}}; {{\"name\": \"b\"}}", [WEATHER, ("b", {}, None)]),
    "granite": ("<|tool_call|>", f'<|tool_call|>[{{"name": "get_weather", "arguments": {ARGS}}}]',
                [WEATHER]),
    "deepseek": ("<｜tool▁calls▁begin｜>", "It is so.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
                 f"function<｜tool▁sep｜>get_weather\n```json\n{ARGS}\n```<｜tool▁call▁end｜>"
                 f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜>"
                 "<｜tool▁calls▁end｜>", [CONTENT, WEATHER, WEATHER]),
    "kimi": ("<|tool_calls_section_begin|>", "<|tool_calls_section_begin|><|tool_call_begin|>"
             f"functions.get_weather:0<|tool_call_argument_begin|>{ARGS}<|tool_call_end|>"
             "<|tool_calls_section_end|>", [("get_weather", CALL, "functions.get_weather:0")]),
    "gemma": ("<|channel> <channel|> <|tool_call> <tool_call|>", "<|channel>thought\nHm. A < b\n"
              '<channel|>It is so.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}'
              "<tool_call|>", [REASON, CONTENT, WEATHER]),
    "cohere": ("<|START_ACTION|>", "<|START_THINKING|>Hm. A < b<|END_THINKING|><|START_RESPONSE|>"
               "It is so.<|END_RESPONSE|>", [REASON, CONTENT]),
    "cohere action": ("<|START_ACTION|>", '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": '
                      f'"get_weather", "parameters": {ARGS}}}]<|END_ACTION|>',
                      [("get_weather", CALL, "0")]),
    "harmony": (HARMONY, "<|channel|>analysis<|message|>Hm. A < b<|end|><|start|>assistant"
                "<|channel|>final<|message|>It is so.<|return|>", [REASON, CONTENT]),
    "harmony call": (HARMONY, "<|channel|>analysis<|message|>Hm. A < b<|end|><|start|>assistant"
                     "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
                     f"{ARGS}<|call|>", [REASON, WEATHER]),
    "harmony, call in the end": (HARMONY, "<|channel|>commentary to=functions.get_weather "
                                 f"<|constrain|>json<|message|>{ARGS}", [WEATHER]),
    "harmony, preamble": (HARMONY, "<|channel|>commentary<|message|>It is so.<|end|>", [CONTENT]),
    "harmony, no header": (HARMONY, "It is so.", [CONTENT]),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("name", CASES)
def test_parts_do_not_depend_on_how_text_is_cut(name: str, size: int) -> None:
    template, answer, expected = CASES[name]
    assert parsed(ChatForm.of(template), answer, size) == expected


@pytest.mark.parametrize(
    "deep", ["[" * 200_000, '{"name": "a", "arguments": {"x": ' + "[" * 200_000]
)
def test_what_is_nested_too_deep_is_content(deep: str) -> None:
    for template, text in ((QWEN, f"<tool_call>{deep}</tool_call>"), (CASES["llama"][0], deep)):
        parser = ChatForm.of(template).parser()
        assert joined([*parser.push(text), *parser.finish()]) == [["content", text]]


def test_arguments_are_json_that_can_be_written() -> None:
    call = '<tool_call>{"name": "a", "arguments": {"x": "%s"}}</tool_call>'
    for text in ("\\ud800", "é", "\\u00e9"):
        (found,) = (p for p in ChatForm.of(QWEN).parser().push(call % text)
                    if isinstance(p, ToolCall))  # fmt: skip
        assert found.arguments.encode() and json.loads(found.arguments) == json.loads(
            f'{{"x": "{text}"}}'
        )
    nothing = call.replace('"%s"', "Infinity")
    assert parsed(ChatForm.of(QWEN), nothing, 5) == [["content", nothing]]


def test_a_call_that_was_cut_is_none() -> None:
    form = ChatForm.of("<tool_call> <function=")
    begun = "<tool_call><function=a><parameter=city>Par"
    for cut in (True, False):  # the model may end without the last marks
        parser = form.parser()
        found = joined([*parser.push(begun), *parser.finish(cut)])
        assert found == ([["content", begun]] if cut else [("a", {"city": "Par"}, None)])


def test_a_bare_object_that_names_no_function_is_content() -> None:
    form, answer = ChatForm.of(CASES["llama"][0]), '{"name": "Bob"}'
    for names in (None, ["Bob"], ["Eve"]):
        parser = form.parser(functions=names and {name: () for name in names})
        found = joined([*parser.push(answer), *parser.finish()])
        assert found == ([["content", answer]] if names == ["Eve"] else [("Bob", {}, None)])


SCHEMA = {"city": {"type": "string"}, "zip": {"enum": ["1", "2"]}, "days": {"type": "integer"},
          "any": {}}  # fmt: skip


@pytest.mark.parametrize(
    ("template", "call", "argument"),
    [
        ("<tool_call> <function=", "<function=f>%s</function>", "<parameter=%s>\n%s\n</parameter>"),
        ("<tool_call> <arg_key>", "f\n%s", "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"),
    ],
)
def test_texts_in_tags_stay_texts(template: str, call: str, argument: str) -> None:
    written = "".join(argument % (k, "1") for k in [*SCHEMA, "more"])
    text = f"<tool_call>{call % written}</tool_call>"
    tool = {"function": {"name": "f", "parameters": {"properties": SCHEMA}}}
    for given, city in (([tool], "1"), ([tool["function"]], "1"), ([], 1), ([{"name": "f"}], 1)):
        parser = ChatForm.of(template).parser(functions=functions(given))
        expected = {"city": city, "zip": city, "days": 1, "any": 1, "more": 1}
        assert joined([*parser.push(text), *parser.finish()]) == [("f", expected, None)]


def test_thinking_that_the_prompt_opened() -> None:
    form = ChatForm.of(QWEN)
    answer = "Hm. A < b\n</think>\n\nIt is so."
    assert parsed(form, answer, 2, "<|im_start|>assistant\n<think>\n") == [REASON, CONTENT]
    assert parsed(form, "Hm. A < b", 2, "<think>") == [REASON]
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert parsed(form, "It is so.", 2, closed) == [CONTENT]


def test_an_answer_that_harmony_continues() -> None:
    form = ChatForm.of(HARMONY)
    assert parsed(form, "It is so.<|return|>", 2,
                  "<|start|>assistant<|channel|>final<|message|>") == [CONTENT]  # fmt: skip
    assert parsed(form, "<|channel|>final<|message|>It is so.", 2,
                  "<|start|>user<|message|>Hi<|end|><|start|>assistant") == [CONTENT]  # fmt: skip


def test_without_tools_calls_are_text() -> None:
    answer = '<tool_call>{"name": "a"}</tool_call>'
    assert parsed(ChatForm.of(QWEN), answer, 3, tools=False) == [["content", answer]]


def test_text_is_passed_on_at_once() -> None:
    parser = ChatForm.of(QWEN).parser()
    assert parser.push("Hello") == [Text("content", "Hello")]
    assert parser.push(" <to") == []
    assert parser.push("wel>") == [Text("content", " <towel>")]
    assert parser.push("\n") == []
    assert parser.finish() == [Text("content", "\n")]


def test_forms_by_template() -> None:
    assert ChatForm.of("{{ messages }}") == ChatForm()
    assert not ChatForm.of("{{ messages }}").thinks
    assert ChatForm.of(QWEN).thinks and ChatForm.of(HARMONY).thinks
