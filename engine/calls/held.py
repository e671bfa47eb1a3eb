"""What an answer with calls is held to, by the tools and the `tool_choice` of the Python API."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from gguflow.engine.constraints.constraint import Constraint
from gguflow.engine.constraints.error import ConstraintRefused
from gguflow.engine.constraints.thinking import Thinking
from gguflow.engine.constraints.vocabulary import Checked, Vocabulary

from .choice import ToolChoice, Tools, functions_of, name_of
from .formats import ToolFormat
from .grammar import kinds, schemas, tool_grammar
from .readers import Kinds


def held(
    tools: Tools,
    choice: ToolChoice,
    form: ToolFormat,
    vocabulary: Vocabulary,
    thinking: Thinking,
    answer: Constraint | None,
) -> tuple[Checked, Mapping[str, Kinds]]:
    """What an answer with calls is held to, and how arguments stand in them.

    answer: the JSON that an answer without calls has. Raises ValueError by name, ConstraintRefused
    among them. A schema of arguments that cannot be obeyed is refused where its function is
    `strict`; others are hints, and a warning says so.
    """
    if form.channels and not thinking.prompt.endswith("<|start|>assistant"):
        raise ConstraintRefused("tool_choice", "the prompt does not end where an answer begins")
    functions = functions_of(tools)
    names = [f.name for f in functions]
    one = name_of(choice) if isinstance(choice, Mapping) else None
    if one is not None and one not in names:
        raise ValueError(f"tool_choice: there is no tool {one!r}")
    required = choice == "required" or one is not None
    if answer is not None:
        if answer.schema is None:
            raise ConstraintRefused(answer.field, "next to tools, only JSON can be asked for")
        if required:
            raise ConstraintRefused(answer.field, "the answer is a call: tool_choice says so")
        vocabulary.check(answer)
    arguments, hints = schemas(functions, vocabulary, form)
    for field in hints:
        # Of whoever called `Model.chat`.
        warnings.warn(f"{field}: any object may come, the schema is a hint", stacklevel=5)
    listed = names if one is None else [one]
    arguments = [arguments[names.index(name)] for name in listed]
    grammar = tool_grammar(
        form, listed, arguments, vocabulary, required=required, parallel=one is None,
        answer=None if answer is None else answer.schema, before=thinking.before,
    )  # fmt: skip
    return vocabulary.check(grammar), kinds(form, listed, arguments)
