"""`tool_choice` of `Model.chat`: calls of every form are held to it and read back, `achat` says the
same, and what cannot be had is refused by name."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

import pytest

from gguflow import ConstraintRefused, Model, Piece
from gguflow.engine.calls import formats
from gguflow.engine.calls.formats import ToolFormat, tool_format
from gguflow.engine.calls.section import held_form
from gguflow.models.chat_parts import ChatForm
from gguflow.models.chat_tools import ToolCall

pytest.importorskip("llguidance", reason="llguidance is missing: pip install 'gguflow[dev]'")

HI = [{"role": "user", "content": "How is the weather?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str, **more: Any) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


TOOLS = [tool("weather"), tool("forecast", strict=True)]
FORECAST = {"type": "function", "function": {"name": "forecast"}}
ASKS = "{{ tools | tojson }}{{ messages[-1].content }}"
# A template of every form that is known, by its marks; gpt-oss's ends where an answer begins.
TEMPLATES = {form.name: ASKS + "{# " + " ".join(marks) + " #}" for marks, form in formats._MARKS}
TEMPLATES["harmony"] += "<|start|>assistant"
TEMPLATES["told"] = "{{ messages[0].content }}{{ messages[-1].content }}"
each_form = pytest.mark.parametrize("name", TEMPLATES)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(n_ctx=2048, n_threads=1)


def check(piece: Piece, names: set[str]) -> None:
    message = piece.message
    assert message is not None and message.tool_calls and piece.finish_reason == "tool_calls"
    for call in message.tool_calls:
        assert call.name in names and call.parsed == json.loads(call.arguments)
        assert call.parsed["city"] in ("Paris", "Oslo") and call.parsed["days"] in (1, 2, 3)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@each_form
def test_a_named_function_is_called(model: Model, name: str, seed: int) -> None:
    assert tool_format(TEMPLATES[name]).name == name
    pieces = list(
        model.chat(HI, 300, tools=TOOLS, tool_choice=FORECAST, template=TEMPLATES[name], seed=seed)
    )
    if pieces[-1].finish_reason == "length" and name == "harmony":
        return  # what comes before the call has no end that a model of stories would find
    check(pieces[-1], {"forecast"})
    message = pieces[-1].message
    assert message is not None and len(message.tool_calls) == 1 and not message.content


@each_form
def test_calls_that_are_required_come_one_or_several(model: Model, name: str) -> None:
    pieces = list(
        model.chat(HI, 60, tools=TOOLS, tool_choice="required", template=TEMPLATES[name], seed=5)
    )
    message = pieces[-1].message
    assert message is not None and pieces[-1].finish_reason in ("tool_calls", "length")
    if pieces[-1].finish_reason == "tool_calls":
        check(pieces[-1], {"weather", "forecast"})


def form_of(name: str) -> ToolFormat:
    return tool_format(TEMPLATES[name])


@pytest.mark.parametrize("name", [n for n in TEMPLATES if n != "harmony"])
def test_what_is_cut_keeps_the_calls_that_are_whole(name: str) -> None:
    calls = form_of(name)
    if isinstance(calls.arguments, formats.Tags):
        t = calls.arguments
        written = f"{t.open}a{t.mid}1{t.close}"
    else:
        written = "{a:1}" if calls.arguments == "gemma" else '{"a": 1}'
    one = "f" + calls.mid + written
    text = calls.first + one + (calls.separator + one if calls.parallel else "") + calls.last
    text = text.replace(formats.COUNT, "7")
    form = held_form(ChatForm.of(TEMPLATES[name]), calls, {})
    found = []
    for n in range(len(text) + 1):
        parser = form.parser("x")
        parts = parser.push("Hm. " + text[:n]) + parser.finish(cut=n < len(text))
        assert "".join(getattr(p, "text", "") for p in parts) == "Hm. " + text[:n]
        read = [p for p in parts if isinstance(p, ToolCall)]
        assert all((c.name, json.loads(c.arguments)) == ("f", {"a": 1}) for c in read)
        found.append(len(read))
    assert found == sorted(found) and found[-1] == (2 if calls.parallel else 1)


def test_text_or_calls(model: Model) -> None:
    for seed in range(3):
        pieces = list(model.chat(HI, 12, tools=TOOLS, tool_choice="auto", seed=seed))
        message = pieces[-1].message
        assert message is not None and (message.content or message.tool_calls)
    told = "".join(model.chat(HI, 12, tools=TOOLS, tool_choice="none", seed=1))
    assert told == "".join(model.chat(HI, 12, seed=1))  # they are not even shown


def test_json_or_calls(model: Model) -> None:
    schema = {"enum": [{"a": 1}, {"a": 2}]}
    pieces = list(model.chat(HI, 200, tools=TOOLS, json_schema=schema, seed=2))
    message = pieces[-1].message
    assert message is not None
    if message.tool_calls:
        check(pieces[-1], {"weather", "forecast"})
    else:
        assert json.loads(message.content)["a"] in (1, 2)


def test_the_asyncio_form_says_the_same(model: Model) -> None:
    async def answer(**options: Any) -> list[Piece]:
        return [p async for p in model.achat(HI, 200, seed=4, **options)]

    async def together() -> list[list[Piece]]:
        return await asyncio.gather(
            answer(regex="[a-z]{3,9}"),
            answer(tools=TOOLS, tool_choice=FORECAST),
            answer(json_schema={"enum": [[1], [2]]}, logprobs=0),
        )

    word, call, data = asyncio.run(together())
    assert "".join(word) == "".join(model.chat(HI, 200, seed=4, regex="[a-z]{3,9}"))
    check(call[-1], {"forecast"})
    same = list(model.chat(HI, 200, seed=4, tools=TOOLS, tool_choice=FORECAST))
    assert "".join(call) == "".join(same) and [p.kind for p in call] == [p.kind for p in same]
    assert data[-1].message is not None and json.loads(data[-1].message.content) in ([1], [2])
    ids = [i for p in data for i in p.ids]
    assert len([x for p in data for x in p.logprobs]) == len(ids)


def test_an_answer_may_be_left_early(model: Model) -> None:
    async def leave() -> str:
        async for piece in model.achat(HI, 100, seed=1):
            return piece.text
        return ""

    async def twice() -> tuple[str, str]:
        return await leave(), await leave()

    first, second = asyncio.run(twice())
    assert first == second != ""


def test_hints_are_said_and_strict_schemas_refused(model: Model) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "odd"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    with pytest.warns(UserWarning, match=r"^tools\.0\.function\.parameters: any object") as found:
        model.chat(HI, 5, tools=tools, tool_choice="required")
    assert found[0].filename == __file__
    strict = [{"type": "function", "function": {"name": "f", "parameters": odd, "strict": True}}]
    with (
        warnings.catch_warnings(),
        pytest.raises(ConstraintRefused, match=r"^tools\.0\.function\.parameters: .*odd"),
    ):
        warnings.simplefilter("error")
        model.chat(HI, 5, tools=strict, tool_choice="required")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tool_choice": "auto"}, ValueError, "tool_choice: there are no tools"),
        ({"tools": [], "tool_choice": "required"}, ValueError, "tool_choice: there are no tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, ValueError, "tool_choice 'any': expected auto"),
        ({"tools": TOOLS, "tool_choice": 5}, TypeError, "tool_choice 5: expected"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, ValueError, "tool_choice {'type'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            ValueError,
            "tool_choice: there is no tool 'g'",
        ),
        (
            {"tools": [*TOOLS, tool("weather")], "tool_choice": "auto"},
            ValueError,
            r"tools\.2\.function\.name: there are two tools 'weather'",
        ),
        (
            {"tools": [tool('a"b')], "tool_choice": "auto"},
            ValueError,
            r"tools\.0\.function\.name 'a\"b': expected",
        ),
        (
            {"tools": [{"type": "function", "function": {}}], "tool_choice": "auto"},
            ValueError,
            r"tools\.0\.function\.name: a function has a name",
        ),
        (
            {"tools": [tool("f", parameters=[])], "tool_choice": "auto"},
            TypeError,
            r"tools\.0\.function\.parameters: expected a mapping",
        ),
        ({"tools": TOOLS, "regex": "a"}, ConstraintRefused, "regex: next to tools, only JSON"),
        (
            {"tools": TOOLS, "tool_choice": "required", "json_schema": True},
            ConstraintRefused,
            "json_schema: the answer is a call",
        ),
        (
            {"tools": TOOLS, "tool_choice": "auto",
             "template": "{{ tools }}<|channel|><|message|>functions"},
            ConstraintRefused,
            "tool_choice: the prompt does not end where an answer begins",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused(
    model: Model, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        model.chat(HI, 5, **options)

    async def first() -> None:
        async for _ in model.achat(HI, 5, **options):
            break

    with pytest.raises(error, match=f"^{message}"):
        asyncio.run(first())
