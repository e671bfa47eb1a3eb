"""Constrained answers: llguidance says which tokens may come next.

A constraint is compiled before its request is accepted, so that one that cannot be obeyed is
refused; while tokens are chosen, every logit it forbids is -inf.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from gguflow.models.tokenizer.vocab import TokenType

from .errors import refused

# What a constraint may cost a step, whatever it says: some tens of milliseconds.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000,
    max_items_in_row=2000, max_lexer_states=50_000, max_grammar_size=200_000, verbose_errors=False,
)  # fmt: skip
_MARKERS = (TokenType.CONTROL, TokenType.USER_DEFINED)
MAX_SOURCE = 500_000  # characters of a schema or grammar
KEPT, KEPT_SOURCE = 256, 1_000_000  # compiled grammars that are kept, and characters of them all
MARKER = 48  # characters of a control token's text
MAX_DEPTH = 64  # levels of a schema
# Space between JSON's tokens is bounded, as in llama.cpp: a model may well write line breaks until
# its tokens are used up. What else a schema may say to llguidance here would weaken it.
_JSON = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}", "coerce_one_of": False, "lenient": False}


class ConstraintError(RuntimeError):
    """A constraint costs more than a step may take, or cannot go on."""


@dataclass(frozen=True)
class Constraint:
    """A grammar in llguidance's form. field: of the request, for messages. schema: of JSON."""

    grammar: str
    field: str
    schema: dict[str, Any] | bool | None = None


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
        """Compile a constraint; takes up to a second, so not in the event loop. Raises ApiError 400
        that names the field."""
        source = constraint.grammar
        if len(source) > 4 * MAX_SOURCE:
            raise refused(constraint.field, "the constraint is too large")
        with self._lock:
            known = self._known.pop(source, None)
            if known is not None:
                self._known[source] = known  # the latest is the last
                return Checked(self, known, constraint)
        matcher = LLMatcher(self.llg, constraint.grammar, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # some limits are only met here
        if matcher.is_error():
            raise refused(constraint.field, _reason(matcher.get_error()), "constraint_refused")
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
        return Masker(self._vocabulary, self._matcher.deep_copy(), n_prompt, self._constraint)

    def accepts(self, text: str) -> bool:
        """Whether a text is complete by it."""
        matcher = self._matcher.deep_copy()
        ids = self._vocabulary.marked(text)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


class Masker:
    """Sets the logits of tokens that may not come next to -inf: a `LogitsProcessor`.

    made_from: its constraint and the tokens of its prompt, to make another one elsewhere.
    """

    def __init__(
        self, vocabulary: Vocabulary, matcher: LLMatcher, n_prompt: int, constraint: Constraint
    ) -> None:
        self._matcher, self._field = matcher, constraint.field
        self.made_from = constraint, n_prompt
        self._n_seen = n_prompt
        self._mask = np.zeros((vocabulary.n_vocab + 31) // 32, np.uint32)
        self._n_vocab = vocabulary.n_vocab

    def __call__(self, ids: Sequence[int], logits: np.ndarray) -> None:
        matcher = self._matcher
        for token in ids[self._n_seen :]:
            if not matcher.consume_token(token):
                raise ConstraintError(f"{self._field}: {_reason(matcher.get_error())}")
        self._n_seen = len(ids)
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if matcher.is_error():
            raise ConstraintError(f"{self._field}: {_reason(matcher.get_error())}")
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: self._n_vocab]
        logits[allowed == 0] = -np.inf


def _reason(text: str) -> str:
    """llguidance's message on one line, without what it prints of its state."""
    line = " ".join(text.partition("\n<state>")[0].split())
    return line[:300] or "the constraint cannot be obeyed"


# -- what constraints are made of ------------------------------------------------------------------


def json_schema(schema: dict[str, Any] | bool, field: str) -> Constraint:
    """JSON of a schema. Keywords that llguidance does not know are refused, not ignored."""
    _check_depth(schema, field)
    text = json.dumps(schema)
    if len(text) > MAX_SOURCE:
        raise refused(field, f"the schema is larger than {MAX_SOURCE} characters")
    grammar = {"grammars": [{"json_schema": with_options(schema)}]}
    return Constraint(json.dumps(grammar), field, schema)


def with_options(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """A schema with this project's rules for llguidance."""
    return {**schema, "x-guidance": _JSON} if isinstance(schema, dict) else schema


def json_object(field: str) -> Constraint:
    """Any JSON object."""
    return json_schema({"type": "object"}, field)


def regex(pattern: str, field: str) -> Constraint:
    """Text that a pattern matches whole."""
    return Constraint(LLMatcher.grammar_from_regex(pattern), field)


def lark(text: str, field: str) -> Constraint:
    """Text of a Lark grammar."""
    return Constraint(LLMatcher.grammar_from_lark(text), field)


def gbnf(text: str, field: str) -> Constraint:
    """Text of one of llama.cpp's grammars."""
    try:
        return lark(any_to_lark(text), field)
    except Exception as error:  # a converter of others' text: it may raise anything
        raise refused(field, f"no GBNF grammar: {str(error)[:200]}") from None


def choice(options: Sequence[str], field: str) -> Constraint:
    """One of some texts."""
    quoted = " | ".join(json.dumps(o, ensure_ascii=True) for o in options)
    return lark(f"start: {quoted}", field)


def _check_depth(value: Any, field: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list):
                below += item
        if not below:
            return
        level = below
    raise refused(field, f"more than {MAX_DEPTH} levels")
