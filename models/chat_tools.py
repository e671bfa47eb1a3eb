"""Tool calls as models write them: the text between a format's markers to names and arguments."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from gguflow.engine.dataclass import dataclass


@dataclass(frozen=True)
class ToolCall:
    """name: of the function. arguments: a JSON object, as text. id: what the model called the call,
    where it names calls."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class CallDelta:
    """What is new of a call that is still being written. index: of the call in its answer. id,
    name: once, when they are known. arguments: more of their JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


_LETTERS = string.ascii_letters + string.digits


def new_call_id(short: bool = False) -> str:
    """A name for a call that the model gave none. short: nine letters, as Mistral's templates ask
    for."""
    if short:
        return "".join(secrets.choice(_LETTERS) for _ in range(9))
    return f"call_{uuid4().hex[:24]}"


# By function, the arguments that are texts: between tags 12345 may be a number or a postcode.
Texts = Mapping[str, Collection[str]]
_NONE: Texts = {}
# The text of one section -> its calls. Raises ValueError for text that is no call.
ReadCalls = Callable[[str, Texts], Sequence[ToolCall]]


def functions(tools: Sequence[Mapping[str, Any]]) -> Texts:
    """The functions of tools as OpenAI's API has them, or of functions alone."""
    found = {}
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            given = schema.get("properties") if isinstance(schema, Mapping) else None
            properties = given if isinstance(given, Mapping) else {}
            found[function["name"]] = frozenset(k for k, s in properties.items() if _is_text(s))
    return found


def _is_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if schema.get("type") is None and isinstance(values, list):
        return bool(values) and all(isinstance(v, str) for v in values)
    return schema.get("type") == "string"


_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id")


def _of_object(value: Any) -> ToolCall:
    """A call from `{"name": .., "arguments": {..}}` and its kin."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = {**value, **value["function"]}
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    name = next((value[k] for k in _NAMES if isinstance(value.get(k), str)), None)
    if not name:
        raise ValueError("a call has a name")
    arguments: Any = next((value[k] for k in _ARGUMENTS if k in value), {})
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    found = next((value[k] for k in _IDS if isinstance(value.get(k), str | int)), None)
    return ToolCall(name, _dumps(arguments), None if found is None else str(found))


def _loads(text: str) -> Any:
    """JSON that a model wrote. Raises ValueError, also for what is nested too deep to read."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError as e:
        raise ValueError(str(e)) from None


def _no_number(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def _dumps(arguments: dict[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which was written as \ud800
        return json.dumps(arguments)
    return text


def json_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """One object, an array of them, or several after each other."""
    decoder, calls, at = json.JSONDecoder(parse_constant=_no_number), [], 0
    text = text.strip().removesuffix(";").rstrip()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        calls += [_of_object(v) for v in (value if isinstance(value, list) else [value])]
        at = re.compile(r"[\s;,]*").match(text, at).end()  # type: ignore[union-attr]
    if not calls:
        raise ValueError("no call")
    return calls


def _in_tags(name: str, found: Sequence[tuple[str, str]], texts: Texts) -> ToolCall:
    """A call whose arguments were written without quotes: texts as they stand, others JSON if they
    are, else text as well."""
    arguments: dict[str, Any] = {}
    for key, value in ((k.strip(), v) for k, v in found):
        arguments[key] = value
        if key not in texts.get(name, ()):
            with suppress(ValueError):
                arguments[key] = _loads(value)
    return ToolCall(name, _dumps(arguments))


_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>]+)>\n?(.*?)(?:\n?</parameter>|(?=\n?<parameter=)|\Z)", re.DOTALL
)


def xml_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """`<function=name><parameter=key>value</parameter></function>` (Qwen3-Coder, Qwen3.5)."""
    calls = [
        _in_tags(name, _PARAMETER.findall(body), texts) for name, body in _FUNCTION.findall(text)
    ]
    return calls or json_calls(text)


_KEY_VALUE = re.compile(
    r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", re.DOTALL
)


def glm_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """A name, then `<arg_key>key</arg_key><arg_value>value</arg_value>` (GLM-4.5)."""
    name = text.split("<arg_key>")[0].strip()
    if not re.fullmatch(r"[\w.\-]+", name):
        return json_calls(text)
    return [_in_tags(name, _KEY_VALUE.findall(text), texts)]


def mistral_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """`[{"name": .., "arguments": ..}]`, or `name[ARGS]{..}` a call."""
    if "[ARGS]" not in text:
        return json_calls(text)
    calls = []
    for part in filter(str.strip, text.split("[TOOL_CALLS]")):
        head, _, arguments = part.partition("[ARGS]")
        name, _, call_id = head.strip().partition("[CALL_ID]")
        calls.append(named_call(name, arguments, call_id or None))
    return calls


def named_call(name: str, arguments: str, call_id: str | None = None) -> ToolCall:
    """A call of a name and the text of its arguments. Raises ValueError if that is no object."""
    value = _loads(arguments.strip() or "{}")
    if not isinstance(value, dict) or not name.strip():
        raise ValueError("a call is a name and an object")
    return ToolCall(name.strip(), _dumps(value), call_id)


_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)(?:<｜tool▁call▁end｜>|\Z)", re.DOTALL
)


def deepseek_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """`name<sep>{..}` (V3.1), or `function<sep>name` and a fenced block of JSON (V3, R1)."""
    calls = []
    for head, body in _DEEPSEEK.findall(text):
        fenced = re.fullmatch(r"\s*([^\n]+)\n```json\n(.*?)\n?```\s*", body, re.DOTALL)
        calls.append(named_call(*fenced.groups()) if fenced else named_call(head, body))
    if not calls:
        raise ValueError("no call")
    return calls


_KIMI = re.compile(
    r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|\Z)",
    re.DOTALL,
)


def kimi_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """`functions.name:0`, its arguments apart (Kimi K2)."""
    calls = []
    for head, body in _KIMI.findall(text):
        name = re.sub(r":\d+$", "", head.strip()).removeprefix("functions.")
        calls.append(named_call(name, body, head.strip()))
    if not calls:
        raise ValueError("no call")
    return calls


_GEMMA_CALL = re.compile(r"\s*call:([\w.\-]+)(\{.*\})\s*", re.DOTALL)
_GEMMA_TOKEN = re.compile(r'<\|"\|>(.*?)<\|"\|>|([\w.\-]+)(?=\s*:)|([^<]|<)', re.DOTALL)


def gemma_calls(text: str, texts: Texts = _NONE) -> list[ToolCall]:
    """`call:name{key:<|"|>text<|"|>,other:1}`: bare keys, own quotes (Gemma 4)."""
    found = _GEMMA_CALL.fullmatch(text)
    if found is None:
        raise ValueError("no call")

    def plain(m: re.Match[str]) -> str:
        quoted, key, other = m.groups()
        return json.dumps(quoted) if quoted is not None else json.dumps(key) if key else other

    return [named_call(found[1], _GEMMA_TOKEN.sub(plain, found[2]))]


# -- tools for templates that show none ------------------------------------------------------------

_TOLD = """You can call functions. These are their JSON signatures:
<tools>
{tools}
</tools>
To call one, answer with nothing but a JSON object in tags, one for each call:
{example}"""
EXAMPLE = '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>'
_TOOLS = re.compile(r"\btools\b")


def shows_tools(template: str) -> bool:
    """Whether a template has a place for tools."""
    return _TOOLS.search(template) is not None


def told_of_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, object]],
    example: str = EXAMPLE,
) -> list[dict[str, Any]]:
    """Messages whose first one, the system's, says which tools there are. example: of a call."""
    out = [dict(m) for m in messages]
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _TOLD.format(tools=listed, example=example)
    if out and out[0].get("role") == "system":
        out[0]["content"] = f"{out[0].get('content') or ''}\n\n{text}"
        return out
    return [{"role": "system", "content": text}, *out]
