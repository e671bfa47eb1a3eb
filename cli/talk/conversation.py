"""Messages so far, and the session whose KV cache holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gguflow.engine.dataclass import dataclass, field, replace
from gguflow.engine.files import read_file, whole_file
from gguflow.engine.piece import Timings
from gguflow.engine.sampling import SamplerSettings
from gguflow.engine.serving.request import Request
from gguflow.engine.text import StoppingText

from ..errors import UsageError
from .thinking import MARKS, ThoughtSplitter, open_mark

if TYPE_CHECKING:
    from gguflow.engine.model import Model
    from gguflow.engine.serving.request import LogitsProcessor
    from gguflow.engine.session import Session
    from gguflow.models.chat import ChatTemplate

PLAIN_STOPS = ("\nUser:",)  # without a template a model would go on with our part too
ROOM = 4  # a conversation that rolls leaves one part in so many free


class Part(NamedTuple):
    """A part of an answer as it comes. kind: "thought", "text", or "note" for what the program has
    to say in between."""

    kind: str
    text: str


@dataclass
class TalkOptions:
    """How answers are made.

    n_predict: most tokens of an answer, -1 for no limit. keep: how many of the first tokens stay
    when the conversation rolls, in whole messages; -1 for all. shifts: whether it rolls.
    budget: tokens of thoughts, 0 for none, -1 for no limit. budget_message: what they end with when
    it is spent. thinks: what the template is told.
    variables: more for the template. keeps_stops: whether what ends an answer stays, unshown, in
    the conversation. within: of a prompt's text and the budget, what keeps answers
    within a constraint, by the prompt's number of tokens.
    """

    settings: SamplerSettings = field(default_factory=SamplerSettings)
    n_predict: int = -1
    ignore_eos: bool = False
    stops: Sequence[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    keeps_stops: bool = False
    keep: int = 0
    shifts: bool = True
    budget: int = -1
    budget_message: str = ""
    thinks: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    within: Callable[[str, int], Callable[[int], LogitsProcessor]] | None = None


class Conversation:
    """A conversation with a model.

    Every turn renders all of it and the session reuses what its cache already holds, so a template
    may rewrite what came before; the prefix is compared token by token.
    """

    def __init__(
        self, model: Model, template: ChatTemplate, options: TalkOptions, session: Session,
        system: str = "",
    ) -> None:  # fmt: skip
        self.model, self.template, self.options = model, template, options
        self.session = session
        self.total = Timings()
        self.system = system
        self.messages: list[dict[str, str]] = []
        self._rolled = 0  # messages that no longer fit, system message not counted
        self._thought = self._text = ""
        self._answers = False

    # -- messages --------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A message of the user's."""
        self.messages.append({"role": "user", "content": text})

    def clear(self) -> None:
        """Back to the system message."""
        self.messages.clear()
        self._rolled = 0

    def undo(self) -> str | None:
        """Take the last exchange back; the user's message, None where there is none."""
        while self.messages:
            message = self.messages.pop()
            self._rolled = min(self._rolled, len(self.messages))
            if message["role"] == "user":
                return message["content"]
        return None

    def save(self, path: str) -> None:
        """Write the conversation as JSON, whole or not at all. Raises OSError."""
        text = json.dumps({"system": self.system, "messages": self.messages}, indent=2)
        with whole_file(Path(path).expanduser()) as part:
            part.write_text(text + "\n", encoding="utf-8")

    def load(self, path: str) -> None:
        """Take up a conversation that `save` wrote. Raises OSError and UsageError."""
        try:
            found = json.loads(read_file(Path(path).expanduser()).decode("utf-8"))
            messages = [dict(m) for m in found["messages"]]
            system = found["system"]
            texts = [system, *(m[k] for m in messages for k in ("role", "content"))]
            fits = all(isinstance(t, str) for t in texts)
        except (ValueError, KeyError, TypeError, RecursionError):
            fits = False
        if not fits:
            raise UsageError(f"{path}: no conversation that /save wrote")
        self.messages, self.system, self._rolled = messages, system, 0

    def _shown(self) -> list[dict[str, str]]:
        """What the template is given."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        first = self._kept()
        return [*system, *self.messages[:first], *self.messages[max(first, self._rolled) :]]

    def _kept(self) -> int:
        """How many of the first messages stay whatever happens."""
        keep = self.options.keep
        if keep < 0:
            return len(self.messages)
        n = 0
        while keep and n < len(self.messages):
            text = self._render(self.messages[: n + 1], False)
            if len(self.model.tokenizer.encode(text, parse_special=True)) > keep:
                break
            n += 1
        return n

    # -- answers ---------------------------------------------------------------------------------

    def prompt(self) -> tuple[list[int], str]:
        """The conversation as tokens, and how its text ends."""
        variables = self._variables()
        ids = self.template.encode(self.model.tokenizer, self._shown(), True, **variables)
        return ids, self._render(self._shown(), True)[-64:]

    def _render(self, messages: Sequence[Mapping[str, str]], answers: bool) -> str:
        return self.template.render(messages, answers, **self._variables())

    def _variables(self) -> dict[str, Any]:
        o = self.options
        thinks = False if o.budget == 0 else o.thinks
        told = {} if thinks is None else {"enable_thinking": thinks}
        return {**told, **o.variables}

    def reply(self) -> Iterator[Part]:
        """Answer what was said. The answer so far is `commit`ted by the caller, at its end or where
        he left. Raises ContextError for what does not fit."""
        self._thought = self._text = ""
        self._answers = True
        yield from self._roll(0)
        ids, end = self.prompt()
        self.model.check_prompt(ids)
        thoughts = ThoughtSplitter(open_mark(end))
        stops = [*self.options.stops]
        if self.template.name == "chat template 'plain'":
            stops += PLAIN_STOPS
        text = StoppingText(self.model.tokenizer.stream(), stops)
        made: list[int] = []
        o = self.options
        within = None if o.within is None else o.within(end, o.budget)
        while True:
            n_thought = yield from self._run(
                [*ids, *made], made, text, thoughts, None if within is None else within(len(ids))
            )
            if n_thought:
                # The budget is spent: the thoughts are ended for it.
                mark = MARKS[thoughts.mark or "<think>"]
                if message := o.budget_message:
                    yield from self._parts([(True, message)])
                made += self.model.tokenizer.encode(
                    f"{message}\n{mark}\n\n", add_special=False, parse_special=True
                )
                thoughts.close()
                continue
            if not self._is_cut(made, text):
                break
            before = self._rolled
            yield from self._roll(len(made))
            if self._rolled == before:
                yield Part("note", f"the context of {self.model.options.n_ctx} tokens is full")
                break
            ids, _ = self.prompt()
        yield from self._parts(thoughts.push(text.flush()) + thoughts.flush())
        if o.keeps_stops:
            self._text += text.found or ""

    def _run(
        self,
        ids: list[int],
        made: list[int],
        text: StoppingText,
        thoughts: ThoughtSplitter,
        within: LogitsProcessor | None = None,
    ) -> Generator[Part, None, bool]:
        """Go on after `ids`; returns whether the budget of thoughts was spent."""
        o, tokenizer = self.options, self.model.tokenizer
        most = o.n_predict - len(made) if o.n_predict >= 0 else -1
        eog = frozenset() if o.ignore_eos else frozenset(tokenizer.eog_ids)
        settings = o.settings
        if made and settings.seed is not None:
            settings = replace(settings, seed=settings.seed + len(made))
        request = Request(
            ids, most, settings, eog, logit_bias=o.logit_bias, processor=within
        )  # fmt: skip
        timings = Timings()
        n_thought = 0
        choices = self.session.choices(request, timings)
        self._ended = False
        try:
            while True:
                try:
                    choice = next(choices)
                except StopIteration as end:
                    self._ended = end.value == "stop"
                    return False
                made.append(choice.id)
                yield from self._parts(thoughts.push(text.push(choice.id)))
                if text.found is not None:
                    return False
                n_thought += thoughts.is_thinking
                if thoughts.is_thinking and 0 <= o.budget <= n_thought:
                    return True
        finally:
            choices.close()
            self.total.add(timings)

    def _is_cut(self, made: list[int], text: StoppingText) -> bool:
        """Whether an answer ended because the context is full."""
        o = self.options
        asked = 0 <= o.n_predict <= len(made)
        return not (self._ended or asked or text.found is not None)

    def _parts(self, parts: Sequence[tuple[bool, str]]) -> Iterator[Part]:
        for is_thought, text in parts:
            if is_thought:
                self._thought += text
            else:
                self._text += text
            yield Part("thought" if is_thought else "text", text)

    def commit(self) -> None:
        """The answer so far is part of the conversation."""
        if self._answers:
            message = {"role": "assistant", "content": self._text}
            if self._thought:
                message["reasoning_content"] = self._thought
            self.messages.append(message)
        self._answers = False

    # -- a full context --------------------------------------------------------------------------

    def _roll(self, n_made: int) -> Iterator[Part]:
        """Leave out the oldest exchanges until there is room again, where that is allowed."""
        n_ctx = self.model.options.n_ctx
        n_before = self.n_tokens() + n_made
        if not self.options.shifts or n_before < n_ctx:
            return
        before, kept = self._rolled, self._kept()
        self._rolled = max(self._rolled, kept)
        last = max((i for i, m in enumerate(self.messages) if m["role"] == "user"), default=0)
        while self._rolled < last and self.n_tokens() + n_made > n_ctx - n_ctx // ROOM:
            self._rolled += 1
            while self._rolled < last and self.messages[self._rolled]["role"] != "user":
                self._rolled += 1
        n = self._rolled - max(before, kept)
        if n > 0:
            yield Part("note", f"the context is full: its oldest {n} messages were left out")

    def n_tokens(self) -> int:
        """Tokens of the conversation as it would be sent."""
        return len(self.prompt()[0])
