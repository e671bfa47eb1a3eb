"""A conversation made ready to be answered: prompt, constraint, settings, how to read answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gguflow.engine.calls.grammar import kinds, markers, schemas, tool_grammar
from gguflow.engine.calls.readers import Kinds
from gguflow.engine.constraints.thinking import Thinking
from gguflow.engine.constraints.vocabulary import Checked
from gguflow.engine.dataclass import dataclass, field, replace

from .answer import Ask
from .asks import compiled, form_of, make_ask
from .errors import refused, refusing
from .exchange import Exchange
from .prompting import chat_ids, check_ids
from .reading import Reader, call_reader
from .schema.chat import AllowedToolsChoice, ChatBody, NamedTool

if TYPE_CHECKING:
    from .manager import Loaded


@dataclass
class Turn:
    """calls: whether the answer may hold some; kinds: how their arguments stand. shows: whether
    thoughts are told."""

    ask: Ask
    thinking: Thinking
    calls: bool
    shows: bool = True
    kinds: Mapping[str, Kinds] = field(default_factory=dict)

    @classmethod
    async def of(cls, loaded: Loaded, body: ChatBody, exchange: Exchange) -> Turn:
        """Prompt, constraint and settings of a body. Raises ApiError."""
        tools = [] if body.tool_choice == "none" else body.tools or []
        if not tools and body.tool_choice not in (None, "none", "auto"):
            raise refused("tool_choice", "there are no tools")
        if body.tool_choice == "auto" and body.tools is None:
            raise refused("tool_choice", "there are no tools")
        budget = _budget(loaded, body, exchange)
        variables = _variables(loaded, body, exchange, budget)
        continued = bool(body.continue_final_message)
        ids, text = await asyncio.to_thread(
            chat_ids, loaded, body.messages, tools, variables=variables,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=continued,
        )  # fmt: skip
        check_ids(loaded, ids, "messages")
        if budget >= 0 and loaded.form.thinks:
            await asyncio.to_thread(lambda: loaded.vocabulary)  # made once, which takes its time
        split = (body.reasoning_format or exchange.service.config.reasoning_format) != "none"
        thinking = Thinking(loaded.form, text, split, budget)
        found: Mapping[str, Kinds] = {}
        constraint: Checked | None
        if tools:
            constraint, found = await _tool_constraint(loaded, body, exchange, thinking)
        else:
            form = await form_of(body)
            if form is not None:  # refused under its own name before thoughts come into it
                await compiled(loaded, form)
                form = thinking.around(form, loaded.vocabulary)
            constraint = await compiled(loaded, form)
        whole = body.max_completion_tokens is not None
        shown = loaded.form.marker_ids(loaded.tokenizer) if loaded.form.thinks else frozenset()
        ask = make_ask(
            loaded, body, exchange.service.config, ids,
            max_tokens=body.max_completion_tokens if whole else body.max_tokens,
            max_field="max_completion_tokens" if whole else "max_tokens",
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            constraint=constraint,
            shown=shown | (markers(loaded.tools, loaded.vocabulary) if tools else frozenset()),
            bound=lambda: thinking.bound(loaded, len(ids), bool(tools)),
        )  # fmt: skip
        if loaded.form.thinks or loaded.tools.channels:
            ask = replace(ask, by_token=True)  # to count those of thoughts
        return cls(ask, thinking, bool(tools), body.include_reasoning is not False, found)

    def reader(self, loaded: Loaded) -> Reader:
        """For one of its answers."""
        reader = Reader(loaded.tokenizer, shows=self.shows)
        if self.calls:
            reader.parser, reader.calls_of = call_reader(
                loaded.tools, self.kinds, self.thinking.prompt
            )
        if reader.parser is None and self.thinking.split and loaded.form.thinks:
            reader.parser = loaded.form.parser(self.thinking.prompt, tools=False)
        return reader


def _budget(loaded: Loaded, body: ChatBody, exchange: Exchange) -> int:
    """Tokens of thoughts; -1 for no limit."""
    if body.thinking_budget_tokens is not None and body.thinking_token_budget is not None:
        raise refused("thinking_token_budget", "thinking_budget_tokens says the same: give one")
    for name in ("thinking_budget_tokens", "thinking_token_budget"):
        given: int | None = getattr(body, name)
        if given is not None:
            if not loaded.form.thinks:
                exchange.warnings.append(name)
            return given
    return exchange.service.config.reasoning_budget


def _variables(
    loaded: Loaded, body: ChatBody, exchange: Exchange, budget: int
) -> dict[str, Any]:  # fmt: skip
    """What the template is told besides the messages."""
    source, given = loaded.template.source, body.chat_template_kwargs or {}
    for name in given:
        if name not in source:
            exchange.warnings.append(f"chat_template_kwargs.{name}")
    variables = {**exchange.service.config.template_kwargs, **given}
    effort = body.reasoning_effort
    if effort is not None:
        if "reasoning_effort" in source:
            variables["reasoning_effort"] = effort
        elif effort == "none" and "enable_thinking" in source:
            variables["enable_thinking"] = given.get("enable_thinking", False)
        else:
            exchange.warnings.append("reasoning_effort")
    if budget == 0 and "enable_thinking" in source:
        variables["enable_thinking"] = given.get("enable_thinking", False)
    return variables


async def _tool_constraint(
    loaded: Loaded, body: ChatBody, exchange: Exchange, thinking: Thinking
) -> tuple[Checked, Mapping[str, Kinds]]:
    """The grammar of text and calls that a body asks for, and how arguments stand in calls."""
    tools = body.tools or []
    names = [t.function.name for t in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise refused(f"tools.{i}.function.name", f"there are two tools {name!r}")
    form = await form_of(body)
    answer: Any = None
    if form is not None:
        answer = form.schema
        if answer is None:
            raise refused(form.field, "next to tools, only JSON can be asked for")

    @refusing()
    def build() -> tuple[Checked, Mapping[str, Kinds]]:
        if form is not None:
            loaded.vocabulary.check(form)
        arguments, hints = schemas([t.function for t in tools], loaded.vocabulary, loaded.tools)
        exchange.warnings += hints
        listed, required = _allowed(body, names)
        arguments = [arguments[names.index(name)] for name in listed]
        if required and answer is not None:
            raise refused("response_format", "the answer is a call: tool_choice says so")
        one = isinstance(body.tool_choice, NamedTool)
        parallel = body.parallel_tool_calls is not False and not one
        grammar = tool_grammar(
            loaded.tools, listed, arguments, loaded.vocabulary,
            required=required, parallel=parallel, answer=answer, before=thinking.before,
        )  # fmt: skip
        return loaded.vocabulary.check(grammar), kinds(loaded.tools, listed, arguments)

    return await asyncio.to_thread(build)


def _allowed(body: ChatBody, names: list[str]) -> tuple[list[str], bool]:
    """Which tools may be called, and whether one must. Raises ApiError."""
    choice, chosen, required = body.tool_choice, names, body.tool_choice == "required"
    if isinstance(choice, NamedTool):
        chosen, required = [choice.function.name], True
    elif isinstance(choice, AllowedToolsChoice):
        allowed = choice.allowed_tools
        chosen, required = [t.function.name for t in allowed.tools], allowed.mode == "required"
    for name in chosen:
        if name not in names:
            raise refused("tool_choice", f"there is no tool {name!r}")
    return list(dict.fromkeys(chosen)), required
