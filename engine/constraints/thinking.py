"""What a model thinks before it answers: told apart, counted, bounded, kept out of constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.models.chat_parts import ChatForm

from .before import FINAL, NEXT, THOUGHTS, Before
from .constraint import Constraint
from .vocabulary import Vocabulary
from .writer import Specials, Writer


class Here(Protocol):
    """What a process has of a model to make a processor with."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def vocabulary(self) -> Vocabulary: ...


@dataclass(frozen=True)
class Thinking:
    """Of one conversation. form: of the model's answers. prompt: the text that is answered. split:
    whether thoughts stand apart from the answer. budget: tokens of them, -1 for no limit."""

    form: ChatForm
    prompt: str
    split: bool
    budget: int = -1

    @property
    def before(self) -> Before | None:
        """The thoughts that may come before an answer of a form; None where there are none, where
        they are over when the answer begins, and where they would be part of its text. Those of
        messages with headers are apart."""
        section = self.form.reasoning
        if section is None or self.form.harmony:
            return None
        opened = self.form.opened(self.prompt)
        if opened is not None:
            return Before(opened.open, opened.closes[0], True)
        if not self.split or self.budget == 0 or self.prompt.rstrip().endswith(section.closes):
            return None
        return Before(section.open, section.closes[0], False)

    def around(self, constraint: Constraint, vocabulary: Specials) -> Constraint:
        """A constraint of the answer, in which thoughts may come first."""
        w, before = Writer(vocabulary), self.before
        if self.form.harmony:
            if not self.prompt.endswith("<|start|>assistant"):
                return constraint
            thoughts = w.rule(f"{w.text(THOUGHTS)} {w.until(NEXT)}")
            start = f"{thoughts}? {w.text(FINAL)} {w.other(constraint)}"
        elif before is None:
            return constraint
        else:
            start = f"{before.written(w)} {w.other(constraint)}"
        return w.constraint(start, constraint.field, constraint.schema)

    def bound(self, here: Here, n_prompt: int, tools: bool) -> Budget | None:
        """What ends the thoughts of one answer to a prompt of so many tokens; None for no limit."""
        if self.budget < 0 or not self.form.thinks:
            return None
        if self.form.harmony:
            # Behind thoughts a call may come as well as an answer.
            ending = NEXT if tools else NEXT + FINAL
        else:
            section = self.form.opened(self.prompt) or self.form.reasoning
            assert section is not None
            ending = f"\n{section.closes[0]}\n\n"
        ids = here.vocabulary.marked(ending)
        return Budget(self, here.tokenizer, n_prompt, ids)


class Budget:
    """Ends thoughts that have had their tokens: a `LogitsProcessor`. inner: the one that comes
    after it, which has to allow the end of thoughts. made_from: to make another one elsewhere."""

    def __init__(
        self, thinking: Thinking, tokenizer: Any, n_prompt: int, ending: Sequence[int]
    ) -> None:
        self.made_from = thinking, n_prompt, (*ending,)
        self._most = thinking.budget
        self._parser = thinking.form.parser(thinking.prompt, tools=False)
        self._stream = tokenizer.stream(show=thinking.form.marker_ids(tokenizer))
        self._n_seen, self._n_thought = n_prompt, 0
        self._ending, self._forced = [*ending], -1
        self.inner: Any = None

    def __call__(self, ids: Sequence[int], logits: np.ndarray) -> None:
        for token in ids[self._n_seen :]:
            self._parser.push(self._stream.push(token))
            self._n_thought += self._parser.thinking
        self._n_seen = len(ids)
        if self._forced < 0 and self._parser.thinking and self._n_thought >= self._most:
            self._forced = 0
        if 0 <= self._forced < len(self._ending):
            token = self._ending[self._forced]
            self._forced += 1
            logits[:] = -np.inf
            logits[token] = 0.0
            return
        if self.inner is not None:
            self.inner(ids, logits)
