"""From a body's fields to what the engine is asked: every one obeyed, or refused by name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gguflow.engine.constraints import forms
from gguflow.engine.constraints.constraint import Constraint
from gguflow.engine.constraints.vocabulary import Checked
from gguflow.engine.dataclass import replace
from gguflow.engine.serving.request import Request
from gguflow.engine.text import StopStrings

from .answer import Ask
from .errors import ApiError, refused, refusing
from .lora import factors
from .schema.chat import ChatBody, CompletionBody
from .schema.output import (
    GrammarFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFields,
    RegexFormat,
    TextFormat,
)

if TYPE_CHECKING:
    from gguflow.engine.constraints.thinking import Budget

    from .config import ServerConfig
    from .manager import Loaded


MOST_STOPS = 16_384  # characters of all stop strings, each of which takes some hundred bytes
_ID = re.compile(r"0|[1-9][0-9]{0,9}")  # a token in `logit_bias`


def make_ask(
    loaded: Loaded,
    body: ChatBody | CompletionBody,
    config: ServerConfig,
    ids: Sequence[int],
    *,
    max_tokens: int | None,
    max_field: str,
    logprobs: int | None,
    constraint: Checked | None,
    shown: frozenset[int] = frozenset(),
    bound: Callable[[], Budget | None] = lambda: None,
) -> Ask:
    """What one sequence is asked for. Raises ApiError naming the field."""
    tokenizer, n_vocab = loaded.tokenizer, loaded.model.hp.n_vocab
    ends = frozenset() if body.ignore_eos else frozenset(tokenizer.eog_ids)
    if body.ignore_eos and constraint is not None:
        raise refused("ignore_eos", "an answer of a form ends when the form does")
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise refused("min_tokens", f"more than {max_field}")
    for i, token in enumerate(body.stop_token_ids or ()):
        if token >= n_vocab:
            raise refused(f"stop_token_ids.{i}", f"{token} is outside the vocabulary of {n_vocab}")
    request = Request(
        ids,
        max_tokens=_limit(max_tokens, max_field, config),
        settings=body.settings(config.defaults),
        stop=ends | frozenset(body.stop_token_ids or ()),
        logprobs=logprobs,
        logit_bias=_bias(body.logit_bias, n_vocab),
        lora=factors(loaded, body.model, body.lora),
    )
    return Ask(
        request, _stop(body.stop), shown, constraint, body.min_tokens or 0, bound,
        ends_early=bool(body.stop_token_ids),
    )  # fmt: skip


def _limit(given: int | None, field: str, config: ServerConfig) -> int:
    if given is not None and 0 <= config.max_output < given:
        raise refused(field, f"this server's answers have at most {config.max_output} tokens")
    return config.max_output if given is None else given


def _stop(given: str | list[str] | None) -> StopStrings:
    texts = [given] if isinstance(given, str) else given or []
    for i, text in enumerate(texts):
        if not text:
            field = "stop" if isinstance(given, str) else f"stop.{i}"
            raise refused(field, "an empty text would end every answer")
    if sum(map(len, texts)) > MOST_STOPS:
        raise refused("stop", f"more than {MOST_STOPS} characters in all")
    return StopStrings(texts)


def _bias(given: dict[str, float] | None, n_vocab: int) -> dict[int, float]:
    out = {}
    for name, value in (given or {}).items():
        # As numbers are written, so that no two names are one token, of whose values one would go.
        token = int(name) if _ID.fullmatch(name) else n_vocab
        if token >= n_vocab:
            raise refused(f"logit_bias.{name[:40]}", f"not a token of 0 to {n_vocab - 1}")
        out[token] = float(value)
    return out


def choices(ask: Ask, n: int) -> list[Ask]:
    """So many answers to one prompt, each with a draw of its own: seeds count up from the one
    given, which is the first one's."""
    seed = ask.request.settings.seed
    if seed is None or seed == -1:
        return [ask] * n
    top = (1 << 63) - 1
    seeds = [seed + i if seed + i <= top else seed + i - (1 << 64) for i in range(n)]
    return [
        replace(ask, request=replace(ask.request, settings=replace(ask.request.settings, seed=s)))
        for s in seeds
    ]


# -- the form of an answer -------------------------------------------------------------------------


async def form_of(body: OutputFields) -> Constraint | None:
    """The constraint that a body's fields ask for, read outside of the event loop: a grammar may
    take a second. Raises ApiError for two of them."""
    fields = body.response_format, body.structured_outputs, body.grammar, body.json_schema
    if all(f is None or isinstance(f, TextFormat) for f in fields):
        return None  # as of most requests, for which no thread is asked
    return await asyncio.to_thread(_form_of, body)


@refusing()
def _form_of(body: OutputFields) -> Constraint | None:
    found = [f for f in (_format(body), _structured(body), _llama_server(body)) if f is not None]
    if len(found) > 1:
        raise refused(found[1].field, f"{found[0].field} asks for a form already")
    return found[0] if found else None


def _format(body: OutputFields) -> Constraint | None:
    f = body.response_format
    if isinstance(f, JsonObjectFormat):
        if f.schema_ is not None:
            return forms.json_schema(f.schema_, "response_format.schema")
        return forms.json_object("response_format")
    if isinstance(f, JsonSchemaFormat):
        field = "response_format.json_schema.schema"
        if f.json_schema.schema_ is None:
            raise refused(field, "Field required")
        return forms.json_schema(f.json_schema.schema_, field)
    if isinstance(f, GrammarFormat):
        make = forms.gbnf if f.syntax == "gbnf" else forms.lark
        return make(f.grammar, "response_format.grammar")
    if isinstance(f, RegexFormat):
        return forms.regex(f.pattern, "response_format.pattern")
    return None


def _structured(body: OutputFields) -> Constraint | None:
    s, field = body.structured_outputs, "structured_outputs"
    if s is None:
        return None
    found = []
    if s.json_ is not None:
        found.append(forms.json_schema(s.json_, f"{field}.json"))
    if s.regex is not None:
        found.append(forms.regex(s.regex, f"{field}.regex"))
    if s.choice is not None:
        found.append(forms.choice(s.choice, f"{field}.choice"))
    if s.grammar is not None:
        found.append(forms.lark(s.grammar, f"{field}.grammar"))
    if s.json_object:
        found.append(forms.json_object(f"{field}.json_object"))
    if len(found) != 1:
        raise refused(field, "expected exactly one of json, regex, choice, grammar, json_object")
    return found[0]


def _llama_server(body: OutputFields) -> Constraint | None:
    if body.grammar is not None and body.json_schema is not None:
        raise refused("json_schema", "grammar asks for a form already")
    if body.grammar is not None:
        return forms.gbnf(body.grammar, "grammar")
    if body.json_schema is not None:
        return forms.json_schema(body.json_schema, "json_schema")
    return None


async def compiled(loaded: Loaded, constraint: Constraint | None) -> Checked | None:
    """A constraint ready for use. Raises ApiError 400 for one that cannot be obeyed."""
    if constraint is None:
        return None
    with refusing():
        return await asyncio.to_thread(lambda: loaded.vocabulary.check(constraint))


def unused(given: object, allowed: tuple[object, ...], field: str, why: str) -> None:
    """Refuses a field that asks for something this server does not do."""
    if given not in allowed:
        raise refused(field, why)


__all__ = ["ApiError", "choices", "compiled", "form_of", "make_ask", "unused"]
