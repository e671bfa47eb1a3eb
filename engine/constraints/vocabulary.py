"""A tokenizer as llguidance sees it, and the constraints it compiles for that.

A constraint is compiled before its request is accepted, so that one that cannot be obeyed is
refused.
"""

from __future__ import annotations

import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from gguflow.models.tokenizer.vocab import TokenType

from .constraint import MAX_SOURCE, Constraint
from .error import ConstraintRefused
from .masker import Masker, reason

# What a constraint may cost a step, whatever it says: some tens of milliseconds.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000,
    max_items_in_row=2000, max_lexer_states=50_000, max_grammar_size=200_000, verbose_errors=False,
)  # fmt: skip
_MARKERS = (TokenType.CONTROL, TokenType.USER_DEFINED)
KEPT, KEPT_SOURCE = 256, 1_000_000  # compiled grammars that are kept, and characters of them all
MARKER = 48  # characters of a control token's text


class Vocabulary:
    """A tokenizer as llguidance sees it. n_vocab: rows of the logits."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Any, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._tokenizer = tokenizer
        # Compiled grammars by their text: programs ask for the same forms and tools time and again.
        self._known: dict[str, LLMatcher] = {}
        self._lock = threading.Lock()
        self.eog_ids: tuple[int, ...] = tuple(sorted(tokenizer.eog_ids))
        eos = tokenizer.eos if tokenizer.eos is not None else (self.eog_ids or (0,))[0]
        self.eos_token_id = eos
        self.bos_token_id = tokenizer.bos
        n = tokenizer.n_vocab
        self.special_token_ids = [i for i in range(n) if tokenizer.is_special(i)]
        special = set(self.special_token_ids)
        self.tokens = [
            tokenizer.token_text(i).encode() if i in special else tokenizer.piece(i)
            for i in range(n)
        ]
        self.tokens += [b""] * (n_vocab - n)  # rows of padding
        self._special = {tokenizer.token_text(i): i for i in self.special_token_ids}
        wrapper: Any = self  # by its attributes; no subclass is asked for
        self.llg = LLTokenizer(wrapper, n_vocab=n_vocab, eos_token=list(self.eog_ids) or [eos])

    def __call__(self, text: bytes | str) -> list[int]:
        """How the tokenizer splits a text that goes on, token for token its bytes."""
        data = text.encode() if isinstance(text, str) else text
        # An SPM vocabulary puts a space before a text; behind a line break it is out of the way.
        ids: list[int] = self._tokenizer.encode(
            "\n" + data.decode("utf-8", "replace"), add_special=False
        )
        found = b""
        while ids and not found.endswith(b"\n"):
            found += self.tokens[ids.pop(0)]
        if b"".join(self.tokens[i] for i in ids) == data:
            return ids
        return list(self.llg.greedy_tokenize(data.decode("utf-8", "replace")))

    def special_id(self, text: str) -> int | None:
        """The id of a control token, None for what is none."""
        return self._special.get(text)

    def marked(self, text: str) -> list[int]:
        """A text's tokens, control tokens and those that the file's author defined as such."""
        out, plain, at = list[int](), "", 0
        while at < len(text):
            mark = self._marker_at(text, at) if text[at] in "<[" else None
            if mark is None:
                plain, at = plain + text[at], at + 1
                continue
            out += [*(self(plain) if plain else ()), mark[1]]
            plain, at = "", at + len(mark[0])
        return out + (self(plain) if plain else [])

    def _marker_at(self, text: str, at: int) -> tuple[str, int] | None:
        for n in range(min(MARKER, len(text) - at), 2, -1):
            token = self._tokenizer.id_of(text[at : at + n])
            if token is not None and self._tokenizer.token_type(token) in _MARKERS:
                return text[at : at + n], token
        return None

    def check(self, constraint: Constraint) -> Checked:
        """Compile a constraint; takes up to a second, so not in the event loop. Raises
        ConstraintRefused."""
        source = constraint.grammar
        if len(source) > 4 * MAX_SOURCE:
            raise ConstraintRefused(constraint.field, "the constraint is too large")
        with self._lock:
            known = self._known.pop(source, None)
            if known is not None:
                self._known[source] = known  # the latest is the last
                return Checked(self, known, constraint)
        matcher = LLMatcher(self.llg, constraint.grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some limits are only met here
        if matcher.is_error():
            raise ConstraintRefused(
                constraint.field, reason(matcher.get_error()), "constraint_refused"
            )
        matcher.reset()
        with self._lock:
            self._known[source] = matcher
            while sum(map(len, self._known)) > KEPT_SOURCE or len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return Checked(self, matcher, constraint)


class Checked:
    """A constraint that can be obeyed, from which every answer makes its own processor."""

    def __init__(
        self, vocabulary: Vocabulary, matcher: LLMatcher, constraint: Constraint
    ) -> None:  # fmt: skip
        self._vocabulary, self._matcher, self._constraint = vocabulary, matcher, constraint
        self.field = constraint.field

    def processor(self, n_prompt: int) -> Masker:
        """A processor of logits for one answer to a prompt of so many tokens."""
        return Masker(
            self._vocabulary.n_vocab, self._matcher.deep_copy(), n_prompt, self._constraint
        )

    def accepts(self, text: str) -> bool:
        """Whether a text is complete by it."""
        matcher = self._matcher.deep_copy()
        ids = self._vocabulary.marked(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
