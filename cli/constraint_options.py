"""Arguments that say which texts may be generated: grammars and JSON schemas."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .errors import PackageError, UsageError
from .prompt import read_file

if TYPE_CHECKING:
    from gguflow.engine.constraints.constraint import Constraint
    from gguflow.engine.constraints.vocabulary import Vocabulary
    from gguflow.engine.model import Model
    from gguflow.engine.serving.request import LogitsProcessor
    from gguflow.models.chat import ChatTemplate


def add_constraints(p: ArgumentParser) -> None:
    """--grammar, -j and their files."""
    g = p.add_mutually_exclusive_group()
    g.add_argument(
        "--grammar", metavar="GBNF", help="only texts of this grammar, in llama.cpp's form"
    )
    g.add_argument("--grammar-file", metavar="FILE", help="the same from a file")
    g.add_argument("-j", "--json-schema", metavar="SCHEMA", help="only JSON of this schema")
    g.add_argument("-jf", "--json-schema-file", metavar="FILE", help="the same from a file")


def constraint(args: Namespace) -> tuple[str, str, Any] | None:
    """What is asked for: its flag, "gbnf" or "json", and the grammar or schema. Raises UsageError
    for a file that cannot be read and a schema that is no JSON."""
    for flag, name, kind in (
        ("--grammar", "grammar", "gbnf"),
        ("--grammar-file", "grammar_file", "gbnf"),
        ("-j", "json_schema", "json"),
        ("-jf", "json_schema_file", "json"),
    ):
        text = getattr(args, name)
        if text is None:
            continue
        if args.ignore_eos:
            raise UsageError(
                f"{flag}: an answer of a form ends when the form does: no --ignore-eos"
            )
        if name.endswith("_file"):
            text = read_file(text, flag)
        if kind == "gbnf":
            return flag, kind, text
        import json

        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise UsageError(f"{flag}: no JSON: {e}") from None
        if not isinstance(schema, dict | bool):
            raise UsageError(f"{flag}: expected a JSON object")
        return flag, kind, schema
    return None


# A prompt's number of tokens to what keeps the answer within a constraint.
Within = Callable[[int], "LogitsProcessor"]


def processor(
    asked: tuple[str, str, Any] | None, model: Model, n_prompt: int
) -> LogitsProcessor | None:
    """What keeps an answer to so many tokens within a constraint. Raises UsageError for one that
    cannot be obeyed, PackageError without llguidance."""
    if asked is None:
        return None
    vocabulary, made = _made(asked, model)
    return _checked(vocabulary, made)(n_prompt)


def answers_within(
    asked: tuple[str, str, Any] | None, model: Model, template: ChatTemplate
) -> Callable[[str, int], Within] | None:
    """The same for answers of a conversation, which may have thoughts first: of a prompt's text and
    the budget of thoughts."""
    if asked is None:
        return None
    from gguflow.models.chat_parts import ChatForm

    vocabulary, made = _made(asked, model)
    _checked(vocabulary, made)
    form = ChatForm.of(template.source)

    def within(prompt: str, budget: int) -> Within:
        from gguflow.engine.constraints.thinking import Thinking

        thinking = Thinking(form, prompt, True, budget)
        return _checked(vocabulary, thinking.around(made, vocabulary))

    return within


def _checked(vocabulary: Vocabulary, made: Constraint) -> Within:
    from gguflow.engine.constraints.error import ConstraintRefused

    try:
        return vocabulary.check(made).processor
    except ConstraintRefused as e:
        raise UsageError(str(e)) from None


def _made(asked: tuple[str, str, Any], model: Model) -> tuple[Vocabulary, Constraint]:
    from gguflow.engine.constraints.error import ConstraintRefused
    from gguflow.engine.constraints.option import PACKAGE

    flag, kind, source = asked
    try:
        from gguflow.engine.constraints import forms
    except ImportError:
        raise PackageError(f"{flag} {PACKAGE}") from None
    try:
        made = (forms.gbnf if kind == "gbnf" else forms.json_schema)(source, flag)
        return model.vocabulary, made
    except ConstraintRefused as e:
        raise UsageError(str(e)) from None
