"""Answers of `Model.chat` taken apart: content, reasoning, calls; while they come and at the end.

The model is made to say what a test wants, a byte a token, so marks come in many small pieces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gguflow import ChatMessage, ChatTemplateError, Model, Piece, ToolCall
from gguflow.engine.chat import chat_prompt

SAID = [{"role": "user", "content": "Weather?"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
PARIS = {"city": "Paris, Île"}
ARGUMENTS = json.dumps(PARIS, ensure_ascii=False)
SHOWN = "{{ tools | tojson }}{{ messages[-1].content }}"
QWEN = SHOWN + "{# <think></think> <tool_call></tool_call> #}"
LLAMA = SHOWN + '{# {"name": function name, "parameters": {}} <|python_tag|> #}'
HARMONY = SHOWN + "{# <|channel|><|message|> functions #}<|start|>assistant"
HERMES_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
LLAMA_CALL = f'{{"name": "weather", "parameters": {ARGUMENTS}}}'


class Script:
    """Makes a model say a text and end, where it has one: a `LogitsProcessor`."""

    def __init__(self, model: Model, text: str, ends: bool = True) -> None:
        t = model.tokenizer
        found = [t.id_of(f"<0x{byte:02X}>") for byte in text.encode()]
        self.ids = [i for i in found if i is not None] + [*t.eog_ids][:1] * ends
        self._n_prompt = -1

    def __call__(self, ids: Sequence[int], logits: NDArray[np.float32]) -> None:
        if self._n_prompt < 0:
            self._n_prompt = len(ids)
        logits[:] = -np.inf
        logits[self.ids[len(ids) - self._n_prompt]] = 0


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(n_ctx=1024, n_threads=1)


def said(
    model: Model, text: str, template: str, tools: bool = True, cut: bool = False
) -> list[Piece]:
    script = Script(model, text, not cut)
    pieces = list(
        model.chat(
            SAID, len(script.ids) if cut else -1, tools=[WEATHER] if tools else None,
            template=template, logits_processor=script, logprobs=0,
        )
    )  # fmt: skip
    assert "".join(pieces) == text
    made = [i for p in pieces for i in p.ids]
    assert made == script.ids[: len(script.ids) if cut else -1]
    assert len([x for p in pieces for x in p.logprobs]) == len(made)
    assert all(p.message is p.finish_reason is p.timings is None for p in pieces[:-1])
    assert pieces[-1].timings is not None
    return pieces


def by_kind(pieces: list[Piece]) -> list[tuple[str | None, str]]:
    """Kinds and their texts, those that follow each other as one."""
    found: list[tuple[str | None, str]] = []
    for p in pieces:
        if p and found and found[-1][0] == p.kind:
            found[-1] = p.kind, found[-1][1] + p
        elif p:
            found.append((p.kind, p.text))
    return found


def of(pieces: list[Piece]) -> tuple[ChatMessage, str | None]:
    """The message, its calls' own names left out, and why it ended."""
    message = pieces[-1].message
    assert message is not None
    ids = [c.id for c in message.tool_calls]
    assert all(ids) and len({*ids}) == len(ids)
    calls = tuple(replace(c, id="") for c in message.tool_calls)
    return replace(message, tool_calls=calls), pieces[-1].finish_reason


CALL = ToolCall("", "weather", ARGUMENTS, {**PARIS})


def test_hermes_calls_behind_thoughts_and_text(model: Model) -> None:
    text = f"<think>\nHm. a < b\n</think>\n\nI look.\n{HERMES_CALL}\n{HERMES_CALL}"
    pieces = said(model, text, QWEN)
    assert of(pieces) == (ChatMessage("I look.", "Hm. a < b", (CALL, CALL)), "tool_calls")
    assert by_kind(pieces) == [
        (None, "<think>\n"), ("reasoning", "Hm. a < b"), (None, "\n</think>\n\n"),
        ("content", "I look."), (None, "\n"), ("tool_call", HERMES_CALL), (None, "\n"),
        ("tool_call", HERMES_CALL),
    ]  # fmt: skip
    assert len([p for p in pieces if p.kind == "reasoning"]) > 5  # as they came


def test_llamas_bare_calls(model: Model) -> None:
    pieces = said(model, LLAMA_CALL, LLAMA)
    assert of(pieces) == (ChatMessage(tool_calls=(CALL,)), "tool_calls")
    assert by_kind(pieces) == [("tool_call", LLAMA_CALL)]
    tagged = said(model, f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", LLAMA)
    assert of(tagged) == (ChatMessage(tool_calls=(CALL, CALL)), "tool_calls")


def test_messages_with_headers(model: Model) -> None:
    call = "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json"
    call += f"<|message|>{ARGUMENTS}"
    text = f"<|channel|>analysis<|message|>Hm.<|end|>{call}"
    pieces = said(model, text, HARMONY)
    assert of(pieces) == (ChatMessage("", "Hm.", (CALL,)), "tool_calls")
    assert by_kind(pieces) == [
        (None, "<|channel|>analysis<|message|>"), ("reasoning", "Hm."), (None, "<|end|>"),
        ("tool_call", call),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (QWEN, "<tool_call>nonsense</tool_call>"),
        (QWEN, '<tool_call>{"name": "weather", "argu'),
        (QWEN, '<tool_call>{"name": "weather", "arguments": {"x": NaN}}</tool_call>'),
        (QWEN, "<tool_call>" + "[" * 300 + "</tool_call>"),
        (LLAMA, '{"name": "Bob", "age": 3}'),  # an answer: no function is called so
        (LLAMA, "{1, 2} is a set"),
        ("plain", "No call at all. "),
    ],
)
def test_what_is_no_call_is_content(model: Model, template: str, text: str) -> None:
    pieces = said(model, text, template)
    assert of(pieces) == (ChatMessage(text), "stop")
    assert by_kind(pieces) == [("content", text)]


def test_without_tools_there_are_no_calls(model: Model) -> None:
    for template in (QWEN, LLAMA):
        pieces = said(model, HERMES_CALL, template, tools=False)
        assert of(pieces) == (ChatMessage(HERMES_CALL), "stop")


def test_thoughts_that_the_prompt_has_begun(model: Model) -> None:
    template = "{{ messages[-1].content }}<think>\n{# </think> #}"
    pieces = said(model, "Hm.\n</think>\n\nSunny.", template, tools=False)
    assert of(pieces) == (ChatMessage("Sunny.", "Hm."), "stop")


def test_answers_that_are_cut(model: Model) -> None:
    assert of(said(model, "<think>Hm", QWEN, cut=True)) == (ChatMessage("", "Hm"), "length")
    coder = SHOWN + "{# <tool_call> <function= #}"
    begun = "<tool_call>\n<function=weather>\n<parameter=city>\nPar"
    assert of(said(model, begun, coder, cut=True)) == (ChatMessage(begun), "length")


def test_tools_that_were_told_in_words(model: Model) -> None:
    pieces = said(model, f"I look.\n{HERMES_CALL}", "plain")
    assert of(pieces) == (ChatMessage("I look.", "", (CALL,)), "tool_calls")
    # The same for a template whose own form is not known.
    assert of(said(model, HERMES_CALL, SHOWN))[0].tool_calls == (CALL,)


def test_names_of_calls(model: Model) -> None:
    call = said(model, HERMES_CALL, QWEN)[-1].message.tool_calls[0]  # type: ignore[union-attr]
    assert call.id.startswith("call_")
    mistral = f'[TOOL_CALLS][{{"name": "weather", "arguments": {ARGUMENTS}}}]'
    call = said(model, mistral, SHOWN + "{# [TOOL_CALLS] #}")[-1].message.tool_calls[0]  # type: ignore[union-attr]
    assert len(call.id) == 9 and call.id.isalnum()


def test_pieces_of_generate_have_no_kind(model: Model) -> None:
    for piece in model.generate("Once", 4):
        assert piece.kind is None and piece.message is None


# -- the way back ----------------------------------------------------------------------------------


def prompt(model: Model, answer: dict[str, object], template: str) -> str:
    result = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
    return chat_prompt(model, [*SAID, answer, result], [WEATHER], template, None).text


def test_a_message_goes_back_into_the_conversation(model: Model) -> None:
    answer = ChatMessage("I look.", "Hm.", (replace(CALL, id="1"),)).as_dict()
    assert answer["reasoning_content"] == "Hm."
    plain = prompt(model, answer, "plain")
    assert f'I look.\n<tool_call>\n{{"name": "weather", "arguments": {json.dumps(PARIS)}}}' in plain
    assert "<tool_response>\nsunny\n</tool_response>" in plain
    wants = "{# tools #}{% set a = messages[1].tool_calls[0].function.arguments %}"
    object, text = wants + "{{ a.city }}", wants + "{{ a | safe if a is string else a.b.c.d }}"
    as_text = {**CALL.as_dict(), "function": {"name": "weather", "arguments": ARGUMENTS}}
    for calls in (answer, {**answer, "tool_calls": [as_text]}):
        assert prompt(model, calls, object) == PARIS["city"]
        assert prompt(model, calls, text) == ARGUMENTS


def test_calls_that_are_none_are_refused(model: Model) -> None:
    answer: dict[str, object] = {"role": "assistant", "tool_calls": ["x"]}
    with pytest.raises(ChatTemplateError, match="no function with a name"):
        prompt(model, answer, "plain")
    assert prompt(model, answer, "{# tools #}{{ messages[1].tool_calls[0] }}") == "x"


def test_an_answer_may_be_left_early(model: Model) -> None:
    for _ in range(2):
        answer = model.chat(SAID, template=QWEN, logits_processor=Script(model, "I look."))
        assert next(answer) == "I"
        del answer
    assert of(said(model, "Sunny.", QWEN)) == (ChatMessage("Sunny."), "stop")
