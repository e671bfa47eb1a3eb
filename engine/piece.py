"""Generated text as it comes, with what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from gguflow.engine.dataclass import dataclass, fields
from gguflow.engine.message import ChatMessage
from gguflow.engine.serving.host_sampling import Choice
from gguflow.engine.serving.request import Ranked
from gguflow.engine.text import StoppingText

FinishReason = Literal["stop", "length", "tool_calls"]
PieceKind = Literal["content", "reasoning", "tool_call"]


@dataclass
class Timings:
    """Tokens and seconds of a generation.

    n_prompt: tokens computed, without those the cache held. The first token comes out of the
    prompt's last run, so N generated tokens take N - 1 runs, or fewer where guesses come true.
    n_drafted, n_accepted: tokens guessed, and those of them that came true.
    """

    n_prompt: int = 0
    prompt_s: float = 0.0
    n_generated: int = 0
    n_runs: int = 0
    generate_s: float = 0.0
    n_drafted: int = 0
    n_accepted: int = 0

    def add(self, other: Timings) -> None:
        """Add another generation's."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


class Piece(str):
    """A piece of generated text: a str, never half a character, that knows where it comes from.

    ids: the tokens that made it, those of text that was held back included. logprobs,
    top_logprobs: of each of them, where they were asked for. finish_reason: None but in the last
    piece, whose text is often empty: "stop" for a stop token or string, "length" for max_tokens, a
    full context or a stop string before the text had its form, "tool_calls" where an answer that
    stopped by itself calls functions. timings: with the last piece.

    kind: what the text is, in answers of `Model.chat`; None for what only stands around: marks such
    as <think>, and blank lines beside them. message: with the last piece of such an answer, all of
    it taken apart.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[Ranked, ...]
    finish_reason: FinishReason | None
    timings: Timings | None
    kind: PieceKind | None
    message: ChatMessage | None

    def __new__(
        cls,
        text: str = "",
        ids: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        top_logprobs: Sequence[Ranked] = (),
        finish_reason: FinishReason | None = None,
        timings: Timings | None = None,
        kind: PieceKind | None = None,
        message: ChatMessage | None = None,
    ) -> Piece:
        piece = super().__new__(cls, text)
        piece.ids, piece.logprobs = tuple(ids), tuple(logprobs)
        piece.top_logprobs = tuple(top_logprobs)
        piece.finish_reason, piece.timings = finish_reason, timings
        piece.kind, piece.message = kind, message
        return piece

    @property
    def text(self) -> str:
        """The same as a plain str."""
        return str.__str__(self)


class Pieces:
    """Tokens to pieces; those that complete no text go with the next that does. accepts: whether a
    text that a stop string ended is complete, by the form that it is held to."""

    def __init__(self, text: StoppingText, accepts: Callable[[str], bool] | None = None) -> None:
        self._text, self._accepts = text, accepts
        self._said: list[str] = []
        self._choices: list[Choice] = []

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._text.found is not None

    def push(self, choice: Choice) -> Piece | None:
        """The piece that a token completes."""
        self._choices.append(choice)
        text = self._text.push(choice.id)
        return self._piece(text) if text else None

    def end(self, finish: FinishReason, timings: Timings | None) -> Piece:
        """The last piece, with what was held back."""
        text = self._text.flush()
        if self.is_stopped:
            whole = "".join([*self._said, text])
            finish = "stop" if self._accepts is None or self._accepts(whole) else "length"
        return self._piece(text, finish, timings)

    def _piece(
        self, text: str, finish: FinishReason | None = None, timings: Timings | None = None
    ) -> Piece:
        choices, self._choices = self._choices, []
        if self._accepts is not None:
            self._said.append(text)
        known = [c for c in choices if c.logprob is not None]
        return Piece(
            text,
            [c.id for c in choices],
            [c.logprob for c in known if c.logprob is not None],
            [c.top_logprobs for c in known],
            finish,
            timings,
        )
