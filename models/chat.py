"""Chat templates: a conversation to the prompt that the model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gguflow.engine.gguf.keys import described
from gguflow.engine.harmless import message_line

from .chat_sandbox import BoundedEnvironment
from .chat_templates import ALIASES, MARKERS, NAMED
from .tokenizer import Tokenizer

KEY = "tokenizer.chat_template"

Message = Mapping[str, object]


class ChatTemplateError(ValueError):
    """A template that cannot be used, or that refused its messages: one line."""

    def __init__(self, text: str) -> None:
        super().__init__(message_line(text))


# What templates see and nobody else sets; names of `encode`'s own among them.
OWN = ("messages", "add_generation_prompt", "bos_token", "eos_token", "tokenizer", "self")


def check_variables(variables: Mapping[str, object]) -> None:
    """Raises ChatTemplateError for a variable that a template has of its own."""
    for name in OWN:
        if name in variables:
            raise ChatTemplateError(f"variable {name!r}: a template has its own")


class ChatTemplate:
    """A jinja2 chat template, rendered in a sandbox with bounded time and memory.

    source: the template. bos, eos: what it sees as `bos_token` and `eos_token`.
    name: what error messages call it.
    Raises ChatTemplateError for bad syntax.
    """

    def __init__(
        self, source: str, bos: str = "", eos: str = "", name: str = "chat template"
    ) -> None:
        self.source = source
        self.name = name
        self._bos, self._eos = bos, eos
        try:
            self._render = BoundedEnvironment().build(source)
        except Exception as error:  # a template is a program: it may raise anything
            raise self._error(error) from error

    @classmethod
    def named(cls, name: str, bos: str = "", eos: str = "") -> ChatTemplate:
        """A well-known format: `chatml`, `llama3`, ...; raises ChatTemplateError listing them."""
        key = ALIASES.get(name, name)
        if key not in NAMED:
            raise ChatTemplateError(
                f"unknown chat template {name!r}; known are {', '.join(sorted(NAMED | ALIASES))}"
            )
        return cls(NAMED[key], bos, eos, name=f"chat template {name!r}")

    @classmethod
    def for_model(
        cls, metadata: Mapping[str, object], tokenizer: Tokenizer, choice: str | None = None
    ) -> ChatTemplate:
        """The template to use with a model.

        choice: a name (of the file's own `tokenizer.chat_template.<name>` or a well-known one), or
        a template itself, known by its `{{` or `{%`. Without it: the file's template; else the
        format whose marker tokens the vocabulary has; else `plain`, "User: ... Assistant:".
        """
        bos, eos = (
            "" if token is None else tokenizer.token_text(token)
            for token in (tokenizer.bos, tokenizer.eos)
        )
        key = KEY if choice is None else f"{KEY}.{choice}"
        if key in metadata:
            source = metadata[key]
            if not isinstance(source, str):
                raise ChatTemplateError(f"{key}: expected a string, found {described(source)}")
            return cls(source, bos, eos, name=key)
        if choice is None:
            names = (name for marker, name in MARKERS if tokenizer.id_of(marker) is not None)
            choice = next(names, "plain")
        elif "{{" in choice or "{%" in choice:
            return cls(choice, bos, eos)
        return cls.named(choice, bos, eos)

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """The prompt of a conversation.

        messages: mappings with `role` and `content`. add_generation_prompt: end with the opening
        of the assistant's answer. variables: more for the template to see, e.g. `tools`.
        Raises ChatTemplateError.
        """
        for i, message in enumerate(messages):
            if not isinstance(message, Mapping) or "role" not in message:
                raise ChatTemplateError(f"message {i} has no role")
        variables.setdefault("tools", None)
        variables.setdefault("documents", None)
        try:
            return self._render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                bos_token=self._bos,
                eos_token=self._eos,
                **variables,
            )
        except Exception as error:
            raise self._error(error) from error

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        **variables: object,
    ) -> list[int]:
        """The prompt as token ids; BOS comes once, whether the template writes it or not."""
        return self.ids(tokenizer, self.render(messages, add_generation_prompt, **variables))

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """A rendered prompt as token ids; BOS comes once, whether it is written or not."""
        has_bos = bool(self._bos) and text.startswith(self._bos)
        ids = tokenizer.encode(text, add_special=not has_bos, parse_special=True)
        # add_eos is for whole documents; the answer is still to come.
        return ids[:-1] if tokenizer.add_eos and not has_bos else ids

    def _error(self, error: Exception) -> ChatTemplateError:
        line = getattr(error, "lineno", None)
        where = f"{self.name}, line {line}" if line else self.name
        message = " ".join(str(error).split()) or type(error).__name__
        return ChatTemplateError(f"{where}: {message[:300]}")
