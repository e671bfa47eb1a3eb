"""Conversations to prompts, and to what their answers are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gguflow.engine.answer import Apart
from gguflow.engine.constraints.option import NAMES, lacking
from gguflow.engine.dataclass import dataclass, replace
from gguflow.engine.generate import Asked, GenerateOptions, ask, within
from gguflow.engine.sampling import SamplerSettings

if TYPE_CHECKING:
    from gguflow.engine.calls.choice import ToolChoice, Tools
    from gguflow.engine.model import Model
    from gguflow.models.chat_parts import ChatForm
    from gguflow.models.chat_tools import Texts


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as the model sees it. text: its end may have begun the thoughts. template: the
    source that made it. form: how answers are to be taken apart; None where all of an answer is
    content. functions: those that the model may call; None without tools."""

    ids: list[int]
    text: str
    template: str
    form: ChatForm | None
    functions: Texts | None


def chat_prompt(
    model: Model,
    messages: Sequence[Mapping[str, object]],
    tools: Tools | None,
    template: str | None,
    variables: Mapping[str, object] | None,
    held: bool = False,
) -> ChatPrompt:
    """The prompt of a conversation. template: instead of the model's own. held: whether answers
    will be held to a form of calls, so that the model has to be told of one. Raises
    ChatTemplateError, and TypeError for messages that are none."""
    if isinstance(messages, str | bytes | Mapping):
        raise TypeError("messages is a list of mappings with role and content")
    if template is not None and not isinstance(template, str):
        raise TypeError(f"template {template!r}: expected a format's name or a jinja2 template")
    if tools is not None and (
        isinstance(tools, str | bytes | Mapping) or not all(isinstance(t, Mapping) for t in tools)
    ):
        raise TypeError("tools is a list of mappings, as OpenAI's API has them")
    from gguflow.engine.calls.formats import tool_format
    from gguflow.models.chat import ChatTemplate, check_variables  # jinja2: not for plain text
    from gguflow.models.chat_history import in_words, rendered
    from gguflow.models.chat_parts import ChatForm
    from gguflow.models.chat_tools import functions, shows_tools, told_of_tools

    check_variables(variables or {})
    chosen = model.chat_template
    if template is not None:
        chosen = ChatTemplate.for_model(model.source.metadata, model.tokenizer, template)
    given = {"tools": tools, **(variables or {})}
    told = not (tool_format(chosen.source).native if held else shows_tools(chosen.source))
    if all(isinstance(m, Mapping) for m in messages):  # else the template says so
        messages = [_with_objects(m) for m in messages]
        if told:
            messages = [in_words(m) for m in messages]
        if told and tools:
            messages, given = told_of_tools(messages, tools), {**given, "tools": None}
    text = rendered(chosen, messages, **given)
    ids = chosen.ids(model.tokenizer, text)
    model.check_prompt(ids)
    form = ChatForm.of(chosen.source)
    if tools:
        form = form.with_calls(told)
    known = functions(tools) if tools else None
    return ChatPrompt(ids, text, chosen.source, form if tools or form.thinks else None, known)


def _with_objects(message: Mapping[str, object]) -> Mapping[str, object]:
    """A message whose calls have objects for arguments, where they came as text, as OpenAI's API
    has them. What is no JSON stays as it is: the template may know what to do with it."""
    calls: Any = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    from json import loads

    try:
        text = call["function"]["arguments"]
        found = loads(text) if isinstance(text, str) else text
        return {**call, "function": {**call["function"], "arguments": found}}
    except (KeyError, TypeError, ValueError, RecursionError):
        return call


@dataclass(frozen=True)
class Turn:
    """A conversation ready to be answered. asked: of the tokens after its prompt."""

    prompt: ChatPrompt
    asked: Asked

    def apart(self) -> Apart:
        """What takes one answer apart."""
        prompt, form = self.prompt, self.prompt.form
        if form is None:
            return Apart(None, False)
        parser = form.parser(prompt.text, prompt.functions is not None, prompt.functions)
        return Apart(parser, form.short_ids)


def turn(
    model: Model,
    messages: Sequence[Mapping[str, object]],
    max_tokens: int,
    settings: SamplerSettings | None,
    tools: Tools | None,
    tool_choice: ToolChoice | None,
    template: str | None,
    variables: Mapping[str, object] | None,
    options: GenerateOptions,
) -> Turn:
    """Prompt and request of a conversation's answer, held to what it must be. Raises as
    `chat_prompt`, `ask` and `held` do. Takes up to a second for what is held to a form."""
    from gguflow.engine.calls.choice import tools_of  # not for plain text

    shown = tools_of(tools, tool_choice)
    asks = tool_choice is not None or any(options.get(name) is not None for name in NAMES)
    held = bool(shown) and asks
    prompt = chat_prompt(model, messages, shown, template, variables, held)
    asked = ask(model, prompt.ids, max_tokens, settings, True, **options)
    if prompt.form is not None:
        asked = replace(asked, show=prompt.form.marker_ids(model.tokenizer))
    found = Turn(prompt, asked)
    if shown and held:
        return _with_calls(model, found, shown, tool_choice or "auto")
    return found if asked.constraint is None else _with_thoughts(model, found)


def _with_thoughts(model: Model, turn: Turn) -> Turn:
    """Held to its constraint, which is on what follows the thoughts."""
    from gguflow.engine.constraints.thinking import Thinking
    from gguflow.models.chat_parts import ChatForm

    prompt, constraint, vocabulary = turn.prompt, turn.asked.constraint, model.vocabulary
    assert constraint is not None
    vocabulary.check(constraint)  # refused under its own name before thoughts come into it
    thinking = Thinking(ChatForm.of(prompt.template), prompt.text, split=True)
    form = vocabulary.check(thinking.around(constraint, vocabulary))
    return Turn(prompt, within(turn.asked, form))


def _with_calls(model: Model, turn: Turn, tools: Tools, choice: ToolChoice) -> Turn:
    """Held to the form of calls, and its text to the constraint if there is one."""
    try:
        from gguflow.engine.calls.formats import tool_format
        from gguflow.engine.calls.grammar import markers
        from gguflow.engine.calls.held import held
        from gguflow.engine.calls.section import held_form
        from gguflow.engine.constraints.thinking import Thinking
    except ImportError as error:  # llguidance
        raise lacking("tool_choice", error) from None
    prompt, asked, vocabulary = turn.prompt, turn.asked, model.vocabulary
    assert prompt.form is not None
    calls = tool_format(prompt.template)
    thinking = Thinking(prompt.form, prompt.text, split=True)
    form, kinds = held(tools, choice, calls, vocabulary, thinking, asked.constraint)
    shown = asked.show | markers(calls, vocabulary)
    asked = within(replace(asked, show=shown), form)
    return Turn(replace(prompt, form=held_form(prompt.form, calls, kinds)), asked)
