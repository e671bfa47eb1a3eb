"""Thoughts stand apart from answers, are counted and bounded, and leave constraints whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import OPTIONS, Running

from gguflow.cli.load import bundled_model
from gguflow.server.config import ModelSpec

# As Qwen's: thinks unless told not to. The prompt of the other one opens the thoughts.
_HEAD = """{%- for m in messages -%}{{- m.role + ': ' -}}
{%- if m.reasoning_content -%}{{- '<think>' + m.reasoning_content + '</think>' -}}{%- endif -%}
{{- m.content + '\n' -}}{%- endfor -%}{%- if tools -%}{{- tools | tojson -}}<tool_call>{%- endif -%}
{{- 'assistant: ' -}}"""
CLOSED = _HEAD + "{%- if enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
HEADERS = (
    "{%- for m in messages -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{%- endfor -%}"
    "{%- if tools -%}functions{%- endif -%}<|start|>assistant{#- <|channel|> -#}"
)  # as gpt-oss
OPENED = _HEAD + "{{- '<think>\n' -}}"
CHAT = {"messages": [{"role": "user", "content": "Tell me of the king."}], "max_tokens": 48,
        "temperature": 0.8, "seed": 4}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip
FORM = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    path = Path(bundled_model())
    running = Running([ModelSpec("opened", path, OPTIONS, OPENED),
                       ModelSpec("closed", path, OPTIONS, CLOSED),
                       ModelSpec("headers", path, OPTIONS, HEADERS)])  # fmt: skip
    yield running
    running.stop()


def message(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


def chunks(data: bytes) -> list[dict[str, Any]]:
    lines = [x.removeprefix(b"data: ") for x in data.split(b"\n\n") if x.startswith(b"data: {")]
    return [json.loads(x) for x in lines]


def test_thoughts_stand_apart_whole_and_streamed(thinker: Running) -> None:
    body = CHAT | {"thinking_budget_tokens": 8}
    status, _, answer = thinker.post(PATH, body)
    assert status == 200, answer
    said = message(answer)
    assert said["reasoning_content"].strip() and said["content"].strip()
    assert "think>" not in said["reasoning_content"] + said["content"]
    usage = answer["usage"]
    n_thought = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 8 < n_thought < usage["completion_tokens"] == 48
    data = thinker.post(PATH, body | {"stream": True, "stream_options": {"include_usage": True}})[2]
    deltas = [c["choices"][0]["delta"] for c in chunks(data) if c["choices"]]
    for field in ("reasoning_content", "content"):
        assert "".join(d.get(field) or "" for d in deltas) == said[field]
    assert chunks(data)[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == n_thought
    # What comes of it does not depend on the budget's being named as vLLM does.
    other = thinker.post(PATH, CHAT | {"thinking_token_budget": 8})[2]
    assert message(other) == said
    left = message(thinker.post(PATH, body | {"reasoning_format": "none"})[2])
    assert "reasoning_content" not in left and "</think>" in left["content"]
    assert left["content"].strip().startswith(said["reasoning_content"])
    hidden = message(thinker.post(PATH, body | {"include_reasoning": False})[2])
    assert "reasoning_content" not in hidden and hidden["content"] == said["content"]


def test_thoughts_may_use_all_tokens(thinker: Running) -> None:
    answer = thinker.post(PATH, CHAT | {"max_tokens": 10})[2]
    assert message(answer)["content"] == "" and message(answer)["reasoning_content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10
    assert answer["choices"][0]["finish_reason"] == "length"
    # A form that had no tokens left is none, and is told as such.
    answer = thinker.post(PATH, CHAT | FORM | {"max_tokens": 10})[2]
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("model", "stream"), [
    ("opened", False), ("opened", True), ("closed", False), ("headers", True),
])  # fmt: skip
def test_a_form_is_the_answers(thinker: Running, model: str, stream: bool) -> None:
    budget = {"model": model, "thinking_budget_tokens": 8, "stream": stream, "max_tokens": 120}

    def ask(more: dict[str, Any]) -> tuple[str, str, str, str]:
        """Thoughts, text, arguments and why it ended."""
        status, _, answer = thinker.post(PATH, CHAT | budget | more)
        assert status == 200, answer
        found = chunks(answer) if stream else [answer]
        parts = [(c.get("delta", c.get("message")), c["finish_reason"])
                 for x in found for c in x["choices"]]  # fmt: skip
        calls = "".join(c["function"]["arguments"] for d, _ in parts
                        for c in d.get("tool_calls") or ())  # fmt: skip
        texts = ["".join(d.get(k) or "" for d, _ in parts)
                 for k in ("reasoning_content", "content")]  # fmt: skip
        return texts[0], texts[1], calls, next(f for _, f in parts if f)

    for more in (
        (FORM,)
        if stream
        else (
            {"grammar": 'root ::= "{\\"a\\": " [0-9] "}"'},
            {"structured_outputs": {"regex": r'\{"a": [0-9]\}'}},
        )
    ):
        thought, text, _, finish = ask(more)
        assert finish == "stop" and (thought or model != "opened")
        assert isinstance(json.loads(text)["a"], int)
    named = {"type": "function", "function": {"name": "f"}}
    for choice in ("required",) if stream else (named,):
        tools = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        thought, text, calls, finish = ask(tools)
        assert finish == "tool_calls" and (thought or model != "opened") and not text.strip()
        assert isinstance(json.loads(calls)["a"], int)


def test_no_thoughts(thinker: Running) -> None:
    ids = thinker.post("/tokenize", {"model": "closed", "messages": CHAT["messages"]})[2]["count"]
    for more in (
        {"thinking_budget_tokens": 0},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        status, headers, answer = thinker.post(PATH, CHAT | {"model": "closed"} | more)
        assert status == 200 and "warning" not in headers, headers
        assert answer["usage"]["prompt_tokens"] > ids, "the template was not told"
        assert "reasoning_content" not in message(answer)
    # A prompt that opens them whatever it is told: they end at once.
    answer = thinker.post(PATH, CHAT | {"thinking_budget_tokens": 0})[2]
    assert not message(answer).get("reasoning_content") and message(answer)["content"]


def test_fields_that_have_no_effect_are_named(server: Running) -> None:
    for field in ("thinking_budget_tokens", "thinking_token_budget"):
        status, headers, _ = server.post(PATH, CHAT | {"max_tokens": 1, field: 3})
        assert status == 200 and field in headers["warning"]
    both = {"thinking_budget_tokens": 1, "thinking_token_budget": 1}
    for more, name in ((both, "thinking_token_budget"), ({"reasoning_format": "x"},
                       "reasoning_format"), ({"thinking_budget_tokens": -2},
                       "thinking_budget_tokens")):  # fmt: skip
        status, _, answer = server.post(PATH, CHAT | more)
        assert status == 400 and answer["error"]["param"] == name


def test_what_the_server_itself_says() -> None:
    path = Path(bundled_model())
    specs = [ModelSpec("m", path, OPTIONS, OPENED), ModelSpec("closed", path, OPTIONS, CLOSED)]
    server = Running(specs, reasoning_budget=4, reasoning_format="none",
                     template_kwargs={"enable_thinking": False})  # fmt: skip
    try:
        said = message(server.post(PATH, CHAT)[2])
        assert "</think>" in said["content"] and "reasoning_content" not in said
        said = message(server.post(PATH, CHAT | {"reasoning_format": "deepseek"})[2])
        assert said["reasoning_content"] and said["content"]
        told, not_told = (
            server.post(PATH, CHAT | {"model": "closed", "max_tokens": 1} | more)[2]["usage"]
            for more in ({}, {"chat_template_kwargs": {"enable_thinking": True}})
        )
        assert told["prompt_tokens"] > not_told["prompt_tokens"]
    finally:
        server.stop()


def test_responses_have_them_as_items(thinker: Running) -> None:
    client = openai.OpenAI(base_url=thinker.url + "/v1", api_key="none")
    asked: dict[str, Any] = {
        "model": "opened", "input": "Tell me of the king.", "max_output_tokens": 60,
        "temperature": 0.8, "extra_body": {"seed": 4, "thinking_budget_tokens": 8},
    }  # fmt: skip
    whole = client.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    thought = whole.output[0]
    assert thought.type == "reasoning" and thought.content and thought.content[0].text
    assert whole.usage and whole.usage.output_tokens_details.reasoning_tokens > 8
    seen: dict[str, str] = {}
    with client.responses.stream(**asked) as stream:
        for event in stream:
            if event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
                seen[event.type] = seen.get(event.type, "") + event.delta
            elif event.type == "response.incomplete":
                last = event.response
    assert seen["response.reasoning_text.delta"] == thought.content[0].text
    assert seen["response.output_text.delta"] == whole.output_text == last.output_text
    # The next turn has them again: the template is shown what the model thought.
    again = [item.model_dump(exclude_none=True) for item in whole.output]
    follow = client.responses.create(**asked | {"input": [
        {"role": "user", "content": "Tell me of the king."}, *again,
        {"role": "user", "content": "And of the queen."}]})  # fmt: skip
    without = client.responses.create(**asked | {"input": [
        {"role": "user", "content": "Tell me of the king."}, *again[1:],
        {"role": "user", "content": "And of the queen."}]})  # fmt: skip
    assert follow.usage and without.usage
    assert follow.usage.input_tokens > without.usage.input_tokens
