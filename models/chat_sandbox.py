"""A jinja2 environment for templates nobody vouches for.

A chat template comes with the model file, so it is somebody else's program. jinja2's immutable
sandbox keeps it from Python's internals; this one also bounds what it may cost: every loop turn,
call, filter and operator takes from a budget, and nothing may build a value that is too large
(`chat_bounds`). Nothing of a template runs before it is rendered: constants are not folded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from types import ModuleType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat_bounds import (
    MAX_BITS,
    bits,
    check_call,
    check_difference,
    check_indent,
    check_method,
    counted,
    looked_at,
    refuse_if,
    spend,
    with_budget,
    written,
)
from .chat_tree import BODY, LOOKED, LOOP, MADE, SLICE, WRITTEN, add_bounds, check_source

# Their time can grow with the square of the text, and no chat format needs them.
_SLOW_FILTERS = ("wordwrap", "urlencode", "urlize", "striptags", "xmlattr", "pprint")
_WIDTH = re.compile(r"%[^a-zA-Z%]")  # of strftime
_MAX_DATE = 1000  # characters of a date's format


class _GenerationTag(Extension):
    """`{% generation %}`, with which templates mark an answer for training: just its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment chat templates are written for, with bounds.

    As in Hugging Face's transformers: trim_blocks, lstrip_blocks, loop controls, the generation
    tag, a tojson that escapes nothing, raise_exception and strftime_now.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=_spend_on_output,
            optimized=False,
        )
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _tojson
        for name in _SLOW_FILTERS:
            del self.filters[name]
        self.filters = {name: _bounded(name, call) for name, call in self.filters.items()}
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: _bounded(name, call) for name, call in tests.items()}
        self.filters |= {LOOP: _bounded_loop, BODY: spend, MADE: counted, LOOKED: looked_at,
                         SLICE: lambda ends: slice(*ends), WRITTEN: written}  # fmt: skip

    def build(self, source: str) -> Callable[..., str]:
        """The template as a function of its variables; every call has its own budget.

        Raises what jinja2 does: TemplateError, SecurityError among them, and whatever an
        expression raises, such as TypeError.
        """
        check_source(source)
        tree = self.parse(source)
        add_bounds(tree)
        template = self.template_class.from_code(self, self.compile(tree), dict(self.globals))

        def render(**variables: Any) -> str:
            return with_budget(lambda: template.render(**variables))

        return render

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuses at once, where jinja2 would go on with an undefined value."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, method or macro within the bounds."""
        # The sandbox wraps str.format in a function of its own.
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        operands = [*args, *kwargs.values()]
        if owner is None or isinstance(owner, ModuleType):  # a function, a macro
            check_call("", operands)
        else:
            name = getattr(obj, "__name__", "")
            check_method(owner, name)
            check_call(name, [owner, *operands])
        return _made(super().call(context, obj, *args, **kwargs), [owner, *operands])

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`, a slice among them."""
        if isinstance(argument, slice):
            return counted(obj[argument])
        return super().getitem(obj, looked_at(argument))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies an operator unless the result would be too large."""
        if operator in ("-", "/", "//"):
            check_difference(left, right)
            check_call("", [left, right])
        elif operator == "**":
            refuse_if(bits(left) * abs(int(right)) > MAX_BITS, "a power")
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            refuse_if(bits(left) + bits(right) > MAX_BITS, "a product")
        elif operator == "*" and isinstance(left, int) and not isinstance(right, float):
            check_call("replace", [right, left])
        elif operator == "*" and isinstance(right, int) and not isinstance(left, float):
            check_call("replace", [left, right])
        elif operator == "%" and isinstance(left, str):
            check_call("format", [left, right])
        else:
            check_call("", [left, right])
        return counted(super().call_binop(context, operator, left, right))


def _bounded_loop(values: Iterable[Any], steps: int) -> Iterator[Any]:
    """The values of a loop whose body takes so many steps."""
    for value in values:
        spend(steps)
        yield value


def _made(value: Any, operands: Iterable[Any]) -> Any:
    """A result, counted as something new unless it is one of the operands."""
    return looked_at(value) if any(value is x for x in operands) else counted(value)


def _bounded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)  # keeps the attribute that says jinja2 passes the context first
    def bounded(*args: Any, **kwargs: Any) -> Any:
        own = args[1:] if hasattr(call, "jinja_pass_arg") else args
        operands = [*own, *kwargs.values()]
        check_call(name, operands)
        return _made(call(*args, **kwargs), operands)

    return bounded


@pass_context  # which jinja2 cannot do before it renders
def _spend_on_output(context: Context, value: Any) -> Any:
    return written(value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    check_indent(value, indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _MAX_DATE or _WIDTH.search(form):
        raise SecurityError("the format of a date is too large")
    spend(len(form))
    return datetime.now().strftime(form)
