"""Reads whole calls out of an answer that was held to their form."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from gguflow.engine.dataclass import replace
from gguflow.models.chat_parts import ChatForm, Section
from gguflow.models.chat_tools import Texts, ToolCall, named_call

from .formats import ToolFormat
from .parse import CallParser
from .readers import Kinds


def held_form(form: ChatForm, calls: ToolFormat, kinds: Mapping[str, Kinds]) -> ChatForm:
    """How answers are taken apart that are text or calls of one form: what follows the form's first
    mark is calls to the end. kinds: as `CallParser` takes them."""
    if calls.channels:
        return form  # messages with headers are read as they stand
    others = (s for s in form.sections if s.kind != "tools")
    section = Section(calls.trigger, (), "tools", partial(_read, calls, kinds))
    return replace(form, sections=(*others, section), bare=False)


def _read(
    form: ToolFormat, kinds: Mapping[str, Kinds], text: str, texts: Texts
) -> list[ToolCall]:  # fmt: skip
    """The calls that are whole: of an answer that was cut, the last one may not be. Raises
    ValueError where none is."""
    parser = CallParser(form, kinds)
    _, deltas = parser.push(form.trigger + text)
    calls = list[ToolCall]()
    for d in deltas:
        if d.name is not None:
            calls.append(ToolCall(d.name, "", d.id))
        last = calls[d.index]
        calls[d.index] = replace(last, arguments=last.arguments + d.arguments)
    whole = list[ToolCall]()
    for call in calls:
        with suppress(ValueError):
            if call.arguments:
                whole.append(named_call(call.name, call.arguments, call.id))
    if not whole:
        raise ValueError("no call is whole")
    return whole
