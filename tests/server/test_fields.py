"""Every field is obeyed, refused by name, or named in a warning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Running, free_text

HI = [{"role": "user", "content": "Tell me of the king."}]
CHAT = {"messages": HI, "max_tokens": 3}
TEXT = {"prompt": "Once upon a time", "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f"}}

REFUSED_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages.0.content.0.type"),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "3"}, "max_tokens"),
    ({"max_completion_tokens": 3}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"min_p": -1}, "min_p"),
    ({"top_k": -2}, "top_k"),
    ({"typical_p": 0}, "typical_p"),
    ({"seed": 1 << 63}, "seed"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repeat_penalty": 0}, "repeat_penalty"),
    ({"mirostat": 3}, "mirostat"),
    ({"logit_bias": {"king": 1}}, "logit_bias.king"),
    ({"logit_bias": {"4096": 1}}, "logit_bias.4096"),
    ({"logit_bias": {"7": 101}}, "logit_bias.7"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop.1"),
    ({"stop": ["x"] * 257}, "stop"),
    ({"stop_token_ids": [4096]}, "stop_token_ids.0"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": "yes"}, "stream"),
    ({"store": True}, "store"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": [TOOL, TOOL]}, "tools.1.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "no good"}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
     "tools.0.function.parameters"),
    ({"tools": [{"type": "function", "function": {
        "name": "f", "strict": True, "parameters": {"properties": {"a": {"not": {}}}}}}]},
     "tools.0.function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}}},
     "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}}},
     "tool_choice"),
    ({"tools": [TOOL], "response_format": {"type": "regex", "pattern": "a"}},
     "response_format.pattern"),
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
     "response_format.json_schema.schema"),
    ({"response_format": {"type": "regex", "pattern": "("}}, "response_format.pattern"),
    ({"response_format": {"type": "grammar", "grammar": "start: x"}}, "response_format.grammar"),
    ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "grammar"),
    ({"grammar": "root ::= ("}, "grammar"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"json_schema": {"type": "object"}, "ignore_eos": True}, "ignore_eos"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"repeat_penalty": 1.1, "repetition_penalty": 1.1}, "body"),
    ({"min_tokens": 4}, "min_tokens"),
    # What other servers know and this one does not is no 200 without it.
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"ebnf": "root ::= 'a'"}, "ebnf"),
    ({"bad_words": ["king"]}, "bad_words"),
    ({"n_predict": 2}, "n_predict"),
    ({"echo": True}, "echo"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"format": "json"}, "format"),
    ({"options": {"temperature": 0}}, "options"),
    ({"documents": [{"text": "a"}]}, "documents"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"web_search_options": {}}, "web_search_options"),
    # A format that has another type's fields asks for something that it would not get.
    ({"response_format": {"type": "text", "json_schema": {"schema": {"type": "array"}}}},
     "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "pattern": "a"}}, "response_format.pattern"),
    ({"response_format": {"type": "json_object", "schema": {"not": {}}}},
     "response_format.schema"),
]  # fmt: skip

REFUSED_TEXT: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": [4096]}, "prompt"),
    ({"prompt": [[1, 2], []]}, "prompt.1"),
    ({"prompt": [[1], ["a"]]}, "prompt.1.0"),
    ({"prompt": [1] * 600}, "prompt"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"suffix": "the end"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"echo": True, "logprobs": 1, "max_tokens": 0}, "max_tokens"),
    ({"prompt": "", "add_special_tokens": False}, "prompt"),
    ({"tools": [TOOL]}, "tools"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"min_tokens": 4}, "min_tokens"),
    ({"structured_outputs": {"choice": ["yes"]}, "max_tokens": 30, "min_tokens": 20}, "min_tokens"),
]

REFUSED_RESPONSE: list[tuple[dict[str, Any], str]] = [
    ({"stop": ["a"]}, "stop"),
    ({"n": 2}, "n"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"grammar": 'root ::= "a"'}, "grammar"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"store": True}, "store"),
    ({"include": ["reasoning.encrypted_content", "file_search_call.results"]}, "include.1"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}},
        "text.format.schema",
    ),
    ({"text": {"format": {"type": "text", "schema": {"type": "array"}}}}, "text.format.schema"),
    ({"min_tokens": 4}, "min_tokens"),
]


@pytest.mark.parametrize(("change", "field"), REFUSED_CHAT, ids=lambda x: str(x)[:50])
def test_a_chat_that_cannot_be_obeyed_is_refused(
    server: Running, change: dict[str, Any], field: str
) -> None:
    status, _, answer = server.post("/v1/chat/completions", CHAT | change)
    assert status == 400, answer
    assert answer["error"]["param"] == field, answer
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("change", "field"), REFUSED_TEXT, ids=lambda x: str(x)[:50])
def test_a_completion_that_cannot_be_obeyed_is_refused(
    server: Running, change: dict[str, Any], field: str
) -> None:
    status, _, answer = server.post("/v1/completions", TEXT | change)
    assert status == 400, answer
    assert answer["error"]["param"] == field, answer


@pytest.mark.parametrize(("change", "field"), REFUSED_RESPONSE, ids=lambda x: str(x)[:50])
def test_a_response_that_cannot_be_obeyed_is_refused(
    server: Running, change: dict[str, Any], field: str
) -> None:
    body = {"input": "Hi", "max_output_tokens": 3} | change
    status, _, answer = server.post("/v1/responses", body)
    assert status == 400, answer
    assert answer["error"]["param"] == field, answer


def test_no_top_logprobs_need_no_logprobs(server: Running) -> None:
    """0 asks for nothing, and clients that fill in every field send it."""
    for more in ({}, {"logprobs": False}, {"logprobs": None}):
        body = CHAT | {"top_logprobs": 0} | more
        status, _, answer = server.post("/v1/chat/completions", body)
        assert status == 200 and answer["choices"][0]["logprobs"] is None, answer
    status, _, answer = server.post(
        "/v1/chat/completions", CHAT | {"top_logprobs": 0, "logprobs": True}
    )
    assert all(t["top_logprobs"] == [] for t in answer["choices"][0]["logprobs"]["content"])
    status, _, answer = server.post("/v1/chat/completions", CHAT | {"top_logprobs": 1})
    assert status == 400 and answer["error"]["param"] == "top_logprobs"


def test_a_name_that_stands_twice(server: Running) -> None:
    """The last one would count, and the form that the first one asks for be dropped."""
    form = '{"type": "regex", "pattern": "a+"}'
    for body, field in (
        (f'{{"prompt": "a", "response_format": {form}, "response_format": null}}',
         "response_format"),
        ('{"prompt": "a", "logit_bias": {"5": -100, "5": 1}}', "5"),
    ):  # fmt: skip
        status, _, answer = server.post("/v1/completions", body.encode())
        assert (status, answer["error"]["param"]) == (400, field), answer
    deep = b'{"prompt": "a", "max_tokens": 1, "metadata": ' + b"[" * 150 + b"]" * 150 + b"}"
    assert server.post("/v1/completions", deep)[0] in (200, 400)


def test_a_schema_of_a_json_object(server: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_object", "schema": schema}
    body = CHAT | {"response_format": form, "max_tokens": 200, "temperature": 0}
    status, headers, answer = server.post("/v1/chat/completions", body)
    assert status == 200 and "warning" not in headers, answer
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"a": 7}
    body = {"input": "hi", "text": {"format": form}, "temperature": 0}
    status, _, answer = server.post("/v1/responses", body)
    assert status == 200, answer
    assert json.loads(answer["output"][-1]["content"][0]["text"]) == {"a": 7}


def test_unknown_fields_are_named_in_a_warning(server: Running) -> None:
    body = CHAT | {"fancy": 1, "messages": HI, "stream_options": None, "user": "me",
                   "tools": [TOOL | {"extra": 1}], "évil\r\nx: y": 2}  # fmt: skip
    status, headers, _ = server.post("/v1/chat/completions", body)
    assert status == 200
    warning = headers["warning"]
    assert warning.startswith('299 gguflow "not used: ')
    for name in ("fancy", "user", "tools.0.extra", "?vil??x??y"):
        assert name in warning
    assert "x" not in headers
    status, headers, _ = server.post("/v1/chat/completions", CHAT)
    assert status == 200 and "warning" not in headers


def test_a_hint_that_is_not_followed_is_named(server: Running) -> None:
    odd = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": odd}}
    status, headers, _ = server.post("/v1/chat/completions", CHAT | {"tools": [tool]})
    assert status == 200 and "tools.0.function.parameters" in headers["warning"]


def test_every_sampling_field_is_obeyed(server: Running) -> None:
    """Each changes the text of a long enough answer, or the answer's length."""
    base = {"prompt": "Once upon a time there was a king and the king said to the king",
            "max_tokens": 60, "seed": 11, "temperature": 0.9}  # fmt: skip
    plain = free_text(server.post("/v1/completions", base)[2])
    for change in (
        {"temperature": 3.0}, {"top_p": 0.05}, {"seed": 12}, {"top_k": 1}, {"min_p": 0.9},
        {"typical_p": 0.05}, {"top_n_sigma": 0.01}, {"repeat_penalty": 5.0},
        {"repetition_penalty": 5.0}, {"repeat_penalty": 5.0, "repeat_last_n": 200},
        {"presence_penalty": 2.0}, {"frequency_penalty": 2.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"dry_multiplier": 50.0, "dry_allowed_length": 0},
        {"mirostat": 2, "mirostat_tau": 0.1}, {"mirostat": 1, "mirostat_tau": 0.1},
        {"dynatemp_range": 0.9}, {"logit_bias": {"278": 100}}, {"samplers": ["top_k"]},
    ):  # fmt: skip
        status, headers, answer = server.post("/v1/completions", base | change)
        assert status == 200 and "warning" not in headers, (change, answer, headers)
        assert free_text(answer) != plain, change


def test_ends(server: Running) -> None:
    base = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
    whole = server.post("/v1/completions", base)[2]
    ids = server.loaded.tokenizer.encode(free_text(whole), add_special=False)
    stopped = server.post("/v1/completions", base | {"stop_token_ids": [ids[5]]})[2]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert len(free_text(stopped)) < len(free_text(whole))
    # The form is complete after one character, but no end is allowed before ten tokens.
    form = {"structured_outputs": {"regex": "[a-z ]*"}, "logit_bias": {"2": 100}}
    short = server.post("/v1/completions", base | form)[2]
    assert short["usage"]["completion_tokens"] == 1 and free_text(short) == ""
    longer = server.post("/v1/completions", base | form | {"min_tokens": 10})[2]
    assert longer["usage"]["completion_tokens"] >= 10


def test_limits_of_the_server() -> None:
    server = Running(max_output=20, max_choices=2)
    try:
        status, _, answer = server.post("/v1/chat/completions", CHAT | {"max_tokens": 21})
        assert status == 400 and answer["error"]["param"] == "max_tokens"
        status, _, answer = server.post(
            "/v1/chat/completions", {"messages": HI, "ignore_eos": True}
        )
        assert answer["usage"]["completion_tokens"] == 20
        assert server.post("/v1/chat/completions", CHAT | {"n": 3})[0] == 400
    finally:
        server.stop()


def test_conversations_go_on(server: Running) -> None:
    body = {"messages": [*HI, {"role": "assistant", "content": "The king was"}], "max_tokens": 8,
            "continue_final_message": True, "temperature": 0}  # fmt: skip
    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200
    ids = server.post("/tokenize", {"messages": HI})[2]["tokens"]
    text = server.post("/detokenize", {"tokens": ids})[2]["content"]
    whole = server.post("/v1/completions", {"prompt": text + " The king was", "max_tokens": 8,
                                            "temperature": 0})[2]  # fmt: skip
    assert free_text(whole) == answer["choices"][0]["message"]["content"]


def test_tokens_and_back(server: Running) -> None:
    tokenizer = server.loaded.tokenizer
    for text in ("Once upon a time", "ünï\n\u2603 \U0001f600", ""):
        plain = server.post("/tokenize", {"content": text})[2]
        assert plain["tokens"] == tokenizer.encode(text, add_special=False)
        full = server.post("/tokenize", {"prompt": text, "with_pieces": True})[2]
        assert [t["id"] for t in full["tokens"]] == tokenizer.encode(text)
        assert full["count"] == len(full["tokens"]) and full["max_model_len"] == 512
        back = server.post("/detokenize", {"tokens": plain["tokens"]})[2]
        assert back["content"] == text
    for body, field in (({}, "content"), ({"content": "a", "prompt": "b"}, "prompt")):
        assert server.post("/tokenize", body)[2]["error"]["param"] == field
    assert server.post("/detokenize", {"tokens": [4096]})[2]["error"]["param"] == "tokens.0"


def test_texts_that_cut_a_form_say_so(server: Running) -> None:
    form = {"structured_outputs": {"choice": ["abc", "abcd"]}, "max_tokens": 9}
    for stop, text, finish in (
        (["bc"], "a", "length"), (["x"], None, "stop"), (["d"], "abc", "stop"),
    ):  # fmt: skip
        body = TEXT | form | {"stop": stop, "logit_bias": {"2": -100}}
        choice = server.post("/v1/completions", body)[2]["choices"][0]
        assert choice["finish_reason"] == finish and text in (None, choice["text"]), choice
    call = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": ["king"]}},
            "required": ["a"]}}  # fmt: skip
    tools = {"tools": [{"type": "function", "function": call}], "tool_choice": "required"}
    body = CHAT | tools | {"max_tokens": 90, "stop": ["ing"]}
    choice = server.post("/v1/chat/completions", body)[2]["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].endswith("k")


def test_offsets_are_those_of_the_text(server: Running) -> None:
    body = TEXT | {"echo": True, "logprobs": 0}
    for more in ({}, {"prompt": [1, 278, 5]}, {"echo": False}):
        choice = server.post("/v1/completions", body | more)[2]["choices"][0]
        found, text = choice["logprobs"], choice["text"]
        ends = [*found["text_offset"][1:], len(text)]
        for token, begin, end in zip(found["tokens"], found["text_offset"], ends, strict=True):
            part = text[begin:end]
            assert part in (token, token.removeprefix(" ")) or token == "<s>", (token, part)
            assert token != "<s>" or not part


def test_cached_tokens_are_counted(server: Running) -> None:
    prompt = "The fox and the bear went to the fair. " * 20
    body = {"prompt": prompt, "max_tokens": 1, "n": 2}
    first, second = (server.post("/v1/completions", body)[2]["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert 64 <= second["prompt_tokens_details"]["cached_tokens"] < second["prompt_tokens"]


def test_some_of_the_tools(server: Running) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]
    choice = {"mode": "required", "tools": tools[1:2]}
    body = CHAT | {"tools": tools, "max_tokens": 60, "parallel_tool_calls": False, "seed": 3,
                   "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}  # fmt: skip
    answer = server.post("/v1/chat/completions", body)[2]
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "g"
    flat = [{"type": "function", "name": name, "parameters": None} for name in ("f", "g", "h")]
    body = {"input": "Hi", "tools": flat, "max_output_tokens": 60, "parallel_tool_calls": False,
            "tool_choice": {"type": "allowed_tools", "mode": "required",
                            "tools": [{"type": "function", "name": "h"}]}}  # fmt: skip
    answer = server.post("/v1/responses", body)[2]
    assert [i["name"] for i in answer["output"] if i["type"] == "function_call"] == ["h"]
