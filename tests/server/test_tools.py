"""The forms of calls: found by a template's marks, held to by a grammar, read back from pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import gguflow
from gguflow.cli.load import bundled_model
from gguflow.engine.calls import formats
from gguflow.engine.calls.formats import COUNT, TOLD, Tags, ToolFormat, tool_format
from gguflow.engine.calls.grammar import markers, schemas, tool_grammar
from gguflow.engine.calls.parse import CallParser
from gguflow.engine.calls.readers import QUOTE
from gguflow.engine.constraints.before import Before
from gguflow.engine.constraints.constraint import Constraint
from gguflow.engine.constraints.error import ConstraintRefused
from gguflow.engine.constraints.vocabulary import Vocabulary
from gguflow.models.chat_harmony import HarmonyParser
from gguflow.models.chat_templates import NAMED
from gguflow.models.chat_text import Text
from gguflow.models.chat_tools import CallDelta
from gguflow.server.prompting import chat_messages
from gguflow.server.schema.chat import Message, Tool

FORMS = [f for f in vars(formats).values() if isinstance(f, ToolFormat)]
READ = [f for f in FORMS if not f.channels]  # the other one is read with its messages
ARGUMENTS = ['{"a": 1}', "{}", '{"s": "}\\"{ </tool ]"}', '{"o": {"l": [1, {"x": "[{"}]}}']
SCHEMA = {"type": "object", "properties": {"c": {"enum": ["x", "y"]}}, "required": ["c"],
          "additionalProperties": False}  # fmt: skip
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
        "more": {
            "type": "object",
            "properties": {"l": {"type": "array", "items": {"type": "string"}}},
        },
    },
    "required": ["city"],
}  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(gguflow.Tokenizer.load(bundled_model()), 4096)


def spelled(form: ToolFormat, arguments: str) -> str:
    """Arguments in JSON as a form has them."""
    value: dict[str, Any] = json.loads(arguments)
    if isinstance(form.arguments, Tags):
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in value.items()}
        t = form.arguments
        return "".join(t.open + k + t.mid + v + t.close for k, v in texts.items())
    return bare(value) if form.arguments == "gemma" else arguments


def bare(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{bare(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(bare, value)) + "]"
    return QUOTE + value + QUOTE if isinstance(value, str) else json.dumps(value)


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    text = form.first + form.separator.join(
        n + form.mid + spelled(form, a) for n, a in calls
    ) + form.last  # fmt: skip
    for i in range(text.count(COUNT)):
        text = text.replace(COUNT, str(i), 1)
    return text


def parse(form: ToolFormat, text: str, seed: int) -> tuple[str, list[tuple[str, str]], bool]:
    """Text and calls of an answer that comes in pieces of one to five characters."""
    rng, parser, at = random.Random(seed), CallParser(form), 0
    shown, calls, ids = "", list[list[str]](), list[str]()
    while at < len(text):
        n = rng.randint(1, 5)
        more, deltas = parser.push(text[at : at + n])
        shown, at = shown + more, at + n
        for d in deltas:
            if d.name is not None:
                assert d.id and d.index == len(calls)
                calls.append([d.name, ""])
                ids.append(d.id)
            calls[d.index][1] += d.arguments
    assert len(set(ids)) == len(ids)
    return shown + parser.flush(), [(n, a) for n, a in calls], parser.complete


def same(found: list[tuple[str, str]], expected: list[tuple[str, str]]) -> bool:
    return [(n, json.loads(a)) for n, a in found] == [(n, json.loads(a)) for n, a in expected]


@pytest.mark.parametrize("form", READ, ids=lambda f: f.name)
@pytest.mark.parametrize("before", ["", "Let me see.\n", "<tool {[ <|"])
def test_calls_in_pieces(form: ToolFormat, before: str) -> None:
    for seed in range(20):
        calls = [(f"f{i}", ARGUMENTS[(seed + i) % 4]) for i in range(1 + seed % 3)]
        text = before + written(form, calls)
        shown, found, complete = parse(form, text, seed)
        assert (shown, complete) == (before, True) and same(found, calls), found
        # An answer that is cut keeps what had come, and is not complete within its arguments.
        shown, found, complete = parse(form, text[: -len(form.last) - 1], seed)
        assert shown == before and len(found) >= len(calls) - 1 and not complete


@pytest.mark.parametrize("form", READ, ids=lambda f: f.name)
def test_text_without_calls(form: ToolFormat) -> None:
    for text in ("Hello, you.", "a < b [TOOL <tool_cal", '{"nam', form.first[:-1], ""):
        assert parse(form, text, 1) == (text, [], False)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_the_grammar_holds_to_the_form(form: ToolFormat, vocabulary: Vocabulary) -> None:
    def takes(text: str, schema: Any = SCHEMA, **options: Any) -> tuple[bool, bool]:
        """Whether a text is allowed so far, and whether it may end there."""
        options = {"required": False, "parallel": True} | options
        grammar = tool_grammar(form, ["f", "g"], [schema] * 2, vocabulary, **options)
        matcher = vocabulary.check(grammar).processor(0)._matcher
        ids = vocabulary(text)
        n = matcher.try_consume_tokens(ids)
        return n == len(ids), n == len(ids) and matcher.is_accepting()

    hello, truth = "Hello.", "true"
    if form.channels:
        hello, truth = ("<|channel|>final<|message|>" + text for text in (hello, truth))
    one = written(form, [("f", '{"c": "x"}')])
    two = written(form, [("f", '{"c": "x"}'), ("g", '{"c": "y"}')])
    wrong = written(form, [("f", '{"c": "z"}')])
    assert takes(hello) == (True, True) and takes(one) == (True, True)
    if form.parallel:
        assert takes(two) == (True, True)
        assert takes("Hello." + one) == (True, True)
    assert not takes(wrong)[0] and not takes(written(form, [("h", "{}")]))[0]
    assert takes(one[:-1]) == (True, False) if form.last else takes(one)[1]
    assert not takes(hello, required=True)[0] and takes(one, required=True) == (True, True)
    assert takes(two, parallel=False) == (False, False)
    answer = {"answer": {"type": "boolean"}}
    assert takes(truth, **answer) == (True, True) and not takes(hello, **answer)[0]
    assert takes(one, **answer) == (True, True)
    # Every kind of value; what must be there, and what need not.
    for arguments, fits in (
        ('{"city": "Bad \\"Ems"}', True),
        ('{"city": "Ulm", "days": 2, "unit": "f", "more": {"l": ["a", "b"]}}', True),
        ('{"city": "Ulm", "more": {}}', True),
        ('{"days": 2}', False),
        ('{"city": "Ulm", "days": "two"}', False),
        ('{"city": "Ulm", "unit": "k"}', False),
    ):
        if form.arguments == "gemma":
            arguments = arguments.replace('\\"', "'")
        assert takes(written(form, [("f", arguments)]), WEATHER)[1] == fits, arguments


def test_thoughts_come_before_what_must_be_called(vocabulary: Vocabulary) -> None:
    one = written(formats.HERMES, [("f", '{"c": "x"}')])
    for before, text, fits in (
        (Before("<think>", "</think>", True), "Hm <tool_call>.</think>\n\n" + one, True),
        (Before("<think>", "</think>", True), one, False),
        (Before("<think>", "</think>", False), "<think>Hm.</think>\n\n" + one, True),
        (Before("<think>", "</think>", False), one, True),
        (Before("<think>", "</think>", False), "Hm." + one, False),
        (None, "<think>Hm.</think>" + one, False),
    ):
        grammar = tool_grammar(
            formats.HERMES, ["f"], [SCHEMA], vocabulary, required=True, parallel=True, before=before
        )
        assert vocabulary.check(grammar).accepts(text) == fits, (before, text)


def test_values_in_tags_are_what_the_schema_says() -> None:
    form = formats.QWEN_CODER
    text = written(form, [("f", '{"zip": "01234", "n": 3, "free": "7", "said": "no"}')])
    parser = CallParser(form, {"f": {"zip": "text", "n": "json"}})
    found = "".join(d.arguments for c in text for d in parser.push(c)[1])
    assert json.loads(found) == {"zip": "01234", "n": 3, "free": 7, "said": "no"}


def test_ids_are_what_templates_ask_for() -> None:
    def id_of(form: ToolFormat, text: str) -> str | None:
        return next(d.id for d in CallParser(form).push(text)[1] if d.id)

    for form in (formats.MISTRAL, formats.MISTRAL_ARGS):
        id = id_of(form, written(form, [("f", "{}")])) or ""
        assert len(id) == 9 and id.isalnum()
    assert id_of(formats.KIMI, written(formats.KIMI, [("f", "{}")])) == "functions.f:0"


def test_calls_among_messages_are_streamed() -> None:
    text = ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>I look.<|end|><|start|>assistant"
            + written(formats.HARMONY, [("f", '{"c": "x"}')]))  # fmt: skip
    for size in (1, 4, 1000):
        parser, parts = HarmonyParser("<|start|>assistant", streamed=True), []
        for i in range(0, len(text), size):
            parts += parser.push(text[i : i + size])
        parts += parser.finish()
        texts = {k: "".join(p.text for p in parts if isinstance(p, Text) and p.kind == k)
                 for k in ("reasoning", "content")}  # fmt: skip
        assert texts == {"reasoning": "Hm.", "content": "I look."}
        calls = [p for p in parts if isinstance(p, CallDelta)]
        assert calls[0].name == "f" and calls[0].id
        assert "".join(p.arguments for p in calls) == '{"c": "x"}'
        assert len(calls) > 3 or size > 4


def test_a_schema_that_a_form_cannot_be_held_to(vocabulary: Vocabulary) -> None:
    odd = {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}

    def tool(strict: bool) -> Tool:
        function = {"name": "f", "parameters": odd, "strict": strict}
        return Tool.model_validate({"type": "function", "function": function})

    assert schemas([tool(True).function], vocabulary, formats.HERMES) == ([odd], [])
    for form in (formats.QWEN_CODER, formats.GEMMA):
        field = "tools.0.function.parameters"
        assert schemas([tool(False).function], vocabulary, form) == ([{"type": "object"}], [field])
        with pytest.raises(ConstraintRefused) as refusal:
            schemas([tool(True).function], vocabulary, form)
        assert refusal.value.field == field


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
        ("<tool_call> tool_calls", TOLD),  # knows calls and shows no tools
        ("[TOOL_CALLS]{{ tools }}", formats.MISTRAL),
        ("[TOOL_CALLS]name[ARGS] tools", formats.MISTRAL_ARGS),
        ('<|start_header_id|> tools {"name": , "parameters": }', formats.LLAMA3),
        ("<|tool_call|> tools <|/tool_call|>", formats.PHI4),
        ("<|tool_call|> tools", formats.GRANITE),
        ("<tool_call>[ tools", formats.GRANITE_TAG),
        ("<tool_call><function=x> tools", formats.QWEN_CODER),
        ("<tool_call> tools <arg_key>{{ k }}</arg_key>\n<arg_value>", formats.GLM),
        ("<tool_call> tools <arg_key>{{ k }}</arg_key><arg_value>", formats.GLM_TIGHT),
        ("tools <|tool_call>call: <tool_call|>", formats.GEMMA),
        ("tools <｜tool▁calls▁begin｜>", formats.DEEPSEEK),
        ("tools <｜tool▁calls▁begin｜> ```json", formats.DEEPSEEK_FENCED),
        ("tools <|tool_calls_section_begin|>", formats.KIMI),
        ("tools <|START_ACTION|>", formats.COHERE),
        ("tools <|start|> <|channel|> <|message|> namespace functions", formats.HARMONY),
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


def test_grammars_are_compiled_once(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    first = vocabulary.check(Constraint('start: "once"', "grammar"))
    again = vocabulary.check(Constraint('start: "once"', "tools"))
    assert again._matcher is first._matcher and (first.field, again.field) == ("grammar", "tools")
    first.processor(0)._matcher.try_consume_tokens(vocabulary("on"))
    assert again.accepts("once") and not again.accepts("on")  # nobody moves the one that is kept
    monkeypatch.setattr("gguflow.engine.constraints.vocabulary.KEPT", 3)
    for i in range(8):
        vocabulary.check(Constraint(f'start: "{i}"', "grammar"))
    assert len(vocabulary._known) == 3 and 'start: "7"' in vocabulary._known
    with pytest.raises(ConstraintRefused):
        vocabulary.check(Constraint("start: (", "grammar"))
    assert "start: (" not in vocabulary._known
