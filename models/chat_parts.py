"""What a chat model says, taken apart while it is generated: thinking, answer, tool calls.

    form = ChatForm.of(template.source)
    parser = form.parser(prompt, tools=True)
    stream = tokenizer.stream(show=form.marker_ids(tokenizer))
    for token in tokens:
        for part in parser.push(stream.push(token)):
            ...                       # Text("reasoning" | "content", text), Markup or ToolCall
    parts = parser.push(stream.flush()) + parser.finish()

Text is passed on as soon as it cannot be the beginning of a marker. A tool call comes in one piece,
when it is complete, behind its text; text that looks like one and cannot be read as one is content,
so nothing the model says is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from gguflow.engine.dataclass import dataclass, replace

from . import chat_tools
from .chat_harmony import HARMONY_MARKERS, HarmonyParser
from .chat_text import Held, Kind, Markup, Text, longest_start, markup
from .chat_tools import CallDelta, ReadCalls, Texts, ToolCall
from .tokenizer import Tokenizer

Part = Text | Markup | ToolCall | CallDelta


@dataclass(frozen=True)
class Section:
    """Text between two markers. closes: any of them ends it; where there is none, the text's end.
    read: of tool calls; None: thinking (`reasoning`), or content whose markers are left out."""

    open: str
    closes: tuple[str, ...] = ()
    kind: Literal["reasoning", "content", "tools"] = "reasoning"
    read: ReadCalls | None = None


class Parser(Protocol):
    """Of one answer."""

    @property
    def thinking(self) -> bool:
        """Whether what comes next is reasoning, as far as can be told."""

    def push(self, text: str) -> list[Part]:
        """The parts that more text completes."""

    def finish(self, cut: bool = False) -> list[Part]:
        """What is left when the answer has ended. cut: not by the model's own will, so a call that
        was not closed is none, though what there is of it could be read."""


def _thinking(open: str, close: str) -> Section:
    return Section(open, (close,))


def _tools(open: str, close: str | None, read: ReadCalls) -> Section:
    return Section(open, (close,) if close else (), "tools", read)


_COHERE = (
    _thinking("<|START_THINKING|>", "<|END_THINKING|>"),
    Section("<|START_RESPONSE|>", ("<|END_RESPONSE|>",), "content"),
    _tools("<|START_ACTION|>", "<|END_ACTION|>", chat_tools.json_calls),
)
# Markers that a template writes, and the sections that they mean: all that a template has.
_KNOWN: tuple[tuple[tuple[str, ...], tuple[Section, ...]], ...] = (
    (("<think>",), (_thinking("<think>", "</think>"),)),
    (("[THINK]",), (_thinking("[THINK]", "[/THINK]"),)),
    (("<seed:think>",), (_thinking("<seed:think>", "</seed:think>"),)),
    (("<|channel>", "<channel|>"), (_thinking("<|channel>thought\n", "<channel|>"),)),
    (("<|START_ACTION|>",), _COHERE),
    (("<tool_call>", "<function="),
     (_tools("<tool_call>", "</tool_call>", chat_tools.xml_calls),)),
    (("<tool_call>", "<arg_key>"),
     (_tools("<tool_call>", "</tool_call>", chat_tools.glm_calls),)),
    (("<tool_call>",), (_tools("<tool_call>", "</tool_call>", chat_tools.json_calls),)),
    (("<|tool_call>", "<tool_call|>"),
     (_tools("<|tool_call>", "<tool_call|>", chat_tools.gemma_calls),)),
    (("<|tool_call|>",), (_tools("<|tool_call|>", None, chat_tools.json_calls),)),
    (("[TOOL_CALLS]",), (_tools("[TOOL_CALLS]", None, chat_tools.mistral_calls),)),
    (("<｜tool▁calls▁begin｜>",),
     (_tools("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", chat_tools.deepseek_calls),)),
    (("<|tool_calls_section_begin|>",),
     (_tools("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
             chat_tools.kimi_calls),)),
    (("<|python_tag|>",), (_tools("<|python_tag|>", None, chat_tools.json_calls),)),
)  # fmt: skip
# Calls of models that were told of tools in words, and of those whose own form is not known.
_TOLD = _tools("<tool_call>", "</tool_call>", chat_tools.json_calls)
# Of parts that are read within a section, to be shown by the tokenizer though they are markup.
_INNER = ("[ARGS]", "[CALL_ID]", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
          "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
          '<|"|>', "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")  # fmt: skip


@dataclass(frozen=True)
class ChatForm:
    """How answers to a template are to be taken apart. bare: an answer that is nothing but a JSON
    object with a name is a tool call (Llama 3.1). harmony: the messages of gpt-oss."""

    sections: tuple[Section, ...] = ()
    bare: bool = False
    harmony: bool = False

    @classmethod
    def of(cls, template: str) -> ChatForm:
        """By the markers in a chat template's source."""
        if "<|channel|>" in template and "<|message|>" in template:
            return cls(harmony=True)
        found: dict[str, Section] = {}
        for markers, sections in _KNOWN:
            if all(m in template for m in markers):
                for s in sections:
                    found.setdefault(s.open, s)
        bare = "<|python_tag|>" in template or '{"name": function name, "parameters"' in template
        return cls(tuple(found.values()), bare)

    def with_calls(self, told: bool = False) -> ChatForm:
        """The same, with calls in tags where it has no form of its own, and where tools were told
        in words (`chat_tools.told_of_tools`)."""
        if not told and (self.harmony or self.bare or self._calls):
            return self
        others = (s for s in self.sections if s.kind != "tools")
        return replace(self, sections=(*others, _TOLD), bare=False)

    @property
    def _calls(self) -> tuple[Section, ...]:
        return tuple(s for s in self.sections if s.kind == "tools")

    @property
    def short_ids(self) -> bool:
        """Whether the template wants short names of calls."""
        return any(s.open == "[TOOL_CALLS]" for s in self.sections)

    @property
    def thinks(self) -> bool:
        """Whether there may be reasoning."""
        return self.harmony or any(s.kind == "reasoning" for s in self.sections)

    @property
    def reasoning(self) -> Section | None:
        """The markers of reasoning, where it has its own."""
        return next((s for s in self.sections if s.kind == "reasoning"), None)

    def opened(self, prompt: str) -> Section | None:
        """The reasoning that a prompt has opened already."""
        end = prompt.rstrip()
        return next((s for s in self.sections if s.kind == "reasoning"
                     and end.endswith(s.open.strip())), None)  # fmt: skip

    def marker_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens that a stream has to show for the parser to see, though they are markup."""
        texts = {m for s in self.sections for m in (s.open.strip("\n"), *s.closes)} | set(_INNER)
        texts |= {"<|channel>"} if any("<|channel>" in s.open for s in self.sections) else set()
        if self.harmony:
            texts |= set(HARMONY_MARKERS)
        ids = (tokenizer.id_of(text) for text in texts)
        return frozenset(i for i in ids if i is not None)

    def parser(
        self, prompt: str = "", tools: bool = True, functions: Texts | None = None
    ) -> Parser:
        """A parser of one answer. prompt: the text that the answer continues, which may have opened
        the thinking already. tools: whether calls are looked for. functions: those there are; a
        bare object that names none of them is an answer in JSON."""
        if self.harmony:
            return HarmonyParser(prompt, tools)
        sections = [s for s in self.sections if tools or s.kind != "tools"]
        return SectionParser(sections, self.bare and tools, self.opened(prompt), functions)


class SectionParser:
    """Sections between markers, in any order; what is outside of them is content."""

    def __init__(
        self,
        sections: Iterable[Section],
        bare: bool = False,
        opened: Section | None = None,
        functions: Texts | None = None,
    ) -> None:
        self._sections = list(sections)
        self._opens = {s.open: s for s in self._sections}
        # An answer may close thinking that nobody saw opened.
        self._strays = {c for s in self._sections if s.kind == "reasoning" for c in s.closes}
        self._bare, self._functions = bare, functions
        self._section = opened
        self._held = Held()
        self._waiting = ""  # text that may be the beginning of a marker, or a section of tools
        self._said = False

    @property
    def thinking(self) -> bool:
        return self._section is not None and self._section.kind == "reasoning"

    def push(self, text: str) -> list[Part]:
        self._waiting += text
        parts: list[Part] = []
        while self._step(parts, final=False):
            pass
        return parts

    def finish(self, cut: bool = False) -> list[Part]:
        parts: list[Part] = []
        while self._step(parts, final=True):
            pass
        section = self._section
        if section is not None and section.kind == "tools" and not (cut and section.closes):
            self._calls(section, self._waiting, "", parts)
        elif section is not None and section.kind == "tools":
            parts += self._held.push("content", section.open + self._waiting)
        elif self._bare and not self._said:
            self._calls(Section("", (), "tools", self._bare_calls), self._waiting, "", parts)
        else:
            self._say(self._waiting, parts)
        self._waiting = ""
        return [*parts, *self._held.finish()]

    def _step(self, parts: list[Part], final: bool) -> bool:
        """Goes past the next marker; False when more text is needed."""
        section, text = self._section, self._waiting
        if self._bare and section is None and not self._said and text.lstrip().startswith("{"):
            return False  # the whole answer may be a call
        markers = set(section.closes) if section else {*self._opens, *self._strays}
        at, marker = min(((i, m) for m in markers if (i := text.find(m)) >= 0),
                         key=lambda f: (f[0], -len(f[1])), default=(-1, ""))  # fmt: skip
        if at < 0:
            if section is not None and section.kind == "tools":
                return False
            keep = 0 if final else longest_start(text, markers)
            self._say(text[: len(text) - keep], parts)
            self._waiting = text[len(text) - keep :]
            return False
        self._waiting = text[at + len(marker) :]
        if section is not None and section.kind == "tools":
            self._calls(section, text[:at], marker, parts)
        else:
            self._say(text[:at], parts)
        self._section = self._opens.get(marker) if section is None else None
        # The markers of calls go with the calls, or with the text that is none.
        of_calls = "tools" in (section and section.kind, self._section and self._section.kind)
        parts += self._held.end_of_section("" if of_calls else marker)
        return True

    def _say(self, text: str, parts: list[Part]) -> None:
        kind: Kind = "reasoning" if self.thinking else "content"
        self._said = self._said or (kind == "content" and bool(text.strip()))
        parts += self._held.push(kind, text)

    def _calls(self, section: Section, text: str, close: str, parts: list[Part]) -> None:
        assert section.read is not None
        written = section.open + text + close
        try:
            calls = section.read(text, self._functions or {})
        except (ValueError, RecursionError):
            parts += self._held.push("content", written)
            return
        parts += [*markup(written, calls=True), *calls]

    def _bare_calls(self, text: str, texts: Texts) -> list[ToolCall]:
        """Raises ValueError for calls of functions that there are not: an object with a name may
        as well be an answer."""
        calls = chat_tools.json_calls(text, texts)
        if self._functions is not None and not all(c.name in self._functions for c in calls):
            raise ValueError("no function is called so")
        return calls
