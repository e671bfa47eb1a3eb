"""The forms of calls: found by a template's marks, held to by a grammar, read back from pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import gguflow
from gguflow.cli.load import bundled_model
from gguflow.models.chat_templates import NAMED
from gguflow.server.constraints import Vocabulary
from gguflow.server.prompting import chat_messages
from gguflow.server.schema.chat import Message, Tool
from gguflow.server.tools import formats
from gguflow.server.tools.formats import TOLD, ToolFormat, tool_format
from gguflow.server.tools.grammar import markers, tool_grammar
from gguflow.server.tools.parse import CallParser

FORMS = [formats.HERMES, formats.MISTRAL, formats.MISTRAL_ARGS, formats.LLAMA3, formats.PHI4,
         formats.GRANITE, formats.GRANITE_TAG, formats.TOLD]  # fmt: skip
ARGUMENTS = ['{"a": 1}', "{}", '{"s": "}\\"{ </tool_call> ]"}', '{"o": {"l": [1, {"x": "[{"}]}}']
SCHEMA = {"type": "object", "properties": {"c": {"enum": ["x", "y"]}}, "required": ["c"],
          "additionalProperties": False}  # fmt: skip


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    return form.first + form.separator.join(n + form.mid + a for n, a in calls) + form.last


def parse(form: ToolFormat, text: str, seed: int) -> tuple[str, list[tuple[str, str]], bool]:
    """Text and calls of an answer that comes in pieces of one to five characters."""
    rng, parser, at = random.Random(seed), CallParser(form), 0
    shown, calls = "", list[list[str]]()
    while at < len(text):
        n = rng.randint(1, 5)
        more, deltas = parser.push(text[at : at + n])
        shown, at = shown + more, at + n
        for d in deltas:
            if d.name is not None:
                assert d.id and d.index == len(calls)
                calls.append([d.name, ""])
            calls[d.index][1] += d.arguments
    return shown + parser.flush(), [(n, a) for n, a in calls], parser.complete


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
@pytest.mark.parametrize("before", ["", "Let me see.\n", "<tool {[ <|"])
def test_calls_in_pieces(form: ToolFormat, before: str) -> None:
    for seed in range(20):
        calls = [(f"f{i}", ARGUMENTS[(seed + i) % 4]) for i in range(1 + seed % 3)]
        text = before + written(form, calls)
        assert parse(form, text, seed) == (before, calls, True)
        # An answer that is cut keeps what had come, and is not complete within its arguments.
        shown, found, complete = parse(form, text[: -len(form.last) - 1], seed)
        assert shown == before and len(found) == len(calls)
        assert complete == (json.loads(calls[-1][1]) is None)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_text_without_calls(form: ToolFormat) -> None:
    for text in ("Hello, you.", "a < b [TOOL <tool_cal", '{"nam', form.first[:-1], ""):
        assert parse(form, text, 1) == (text, [], False)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_the_grammar_holds_to_the_form(form: ToolFormat) -> None:
    vocabulary = Vocabulary(gguflow.Tokenizer.load(bundled_model()), 4096)

    def takes(text: str, **options: Any) -> tuple[bool, bool]:
        """Whether a text is allowed so far, and whether it may end there."""
        options = {"required": False, "parallel": True} | options
        grammar = tool_grammar(form, ["f", "g"], [SCHEMA] * 2, vocabulary, **options)
        matcher = vocabulary.check(grammar).processor(0)._matcher
        ids = vocabulary(text)
        n = matcher.try_consume_tokens(ids)
        return n == len(ids), n == len(ids) and matcher.is_accepting()

    one = written(form, [("f", '{"c": "x"}')])
    two = written(form, [("f", '{"c": "x"}'), ("g", '{"c": "y"}')])
    wrong = written(form, [("f", '{"c": "z"}')])
    assert takes("Hello.") == (True, True)
    assert takes("Hello." + one) == (True, True) and takes(two) == (True, True)
    assert not takes(wrong)[0] and not takes(written(form, [("h", "{}")]))[0]
    assert takes(one[:-1]) == (True, False) if form.last else takes(one)[1]
    assert not takes("Hello.", required=True)[0] and takes(one, required=True) == (True, True)
    assert takes(two, parallel=False) == (False, False)
    answer = {"answer": {"type": "boolean"}}
    assert takes("true", **answer) == (True, True) and not takes("Hello", **answer)[0]
    assert takes(one, **answer) == (True, True)


class Marked:
    """A vocabulary in which the markers of calls are control tokens."""

    IDS = {"[TOOL_CALLS]": 5, "[ARGS]": 6, "<|tool_call|>": 7}

    def special_id(self, text: str) -> int | None:
        return self.IDS.get(text)


def test_markers_that_are_control_tokens_stand_by_their_number() -> None:
    marked: Any = Marked()
    text = tool_grammar(formats.MISTRAL_ARGS, ["f"], [{}], marked, required=False, parallel=True)
    assert "<[5]>" in text.grammar and "<[6]>" in text.grammar and "TOOL_CALLS" not in text.grammar
    assert markers(formats.MISTRAL_ARGS, marked) == {5, 6}
    assert markers(formats.PHI4, marked) == {7} and markers(formats.LLAMA3, marked) == set()


def test_forms_are_found_by_a_templates_marks() -> None:
    assert {name: tool_format(source).name for name, source in NAMED.items()} == dict.fromkeys(
        NAMED, "told"
    )
    for source, form in (
        ("{% if tools %}<tool_call>\n{{ x }}</tool_call>", formats.HERMES),
        ("[TOOL_CALLS]{{ tools }}", formats.MISTRAL),
        ("[TOOL_CALLS]name[ARGS]", formats.MISTRAL_ARGS),
        ('<|start_header_id|> tools {"name": , "parameters": }', formats.LLAMA3),
        ("<|tool_call|> tools <|/tool_call|>", formats.PHI4),
        ("<|tool_call|> tools", formats.GRANITE),
        ("<tool_call>[ tools", formats.GRANITE_TAG),
        ("<tool_call><function=x> tools", TOLD),
    ):
        assert tool_format(source) is form, source


def test_tools_are_told_where_a_template_knows_none() -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "strict": True}})
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        Message(role="developer", content="Be kind."),
        Message(
            role="user", content=[{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]
        ),
        Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]}),
        Message(role="tool", tool_call_id="1", content="42"),
    ]
    told = chat_messages(messages, TOLD, [tool])
    assert [m["role"] for m in told] == ["system", "user", "assistant", "user"]
    assert told[0]["content"].startswith("Be kind.") and '"name": "f"' in told[0]["content"]
    assert told[1]["content"] == "Hi you"
    assert parse(TOLD, told[2]["content"], 0)[1] == [("f", '{"a": 1}')]
    assert "42" in told[3]["content"]
    native = chat_messages(messages, formats.HERMES, [tool])
    assert native[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert native[3]["role"] == "tool" and len(native) == 4
