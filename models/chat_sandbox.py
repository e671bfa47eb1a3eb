"""A jinja2 environment for templates nobody vouches for.

A chat template comes with the model file, so it is somebody else's program. jinja2's immutable
sandbox keeps it from Python's internals; this one also bounds what it may cost: every loop turn,
call, filter and operator takes from a budget, and nothing may build a value larger than MAX_SIZE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000  # a second or two; a conversation of a thousand messages takes a tenth
MAX_SIZE = 2_000_000  # characters in one value, an item of a list counting as _ITEM
_MAX_BITS = 4096  # of an integer
_ITEM = 16
_UNITS_PER_STEP = 1024
_OUTPUT_PER_STEP = 64  # characters: what is written all stays in memory
_CALL_STEPS = 5

# Their result can be as large as the product of their operands' sizes.
_MULTIPLYING = {
    "replace",
    "join",
    "indent",
    "center",
    "ljust",
    "rjust",
    "zfill",
    "expandtabs",
    "format",
    "format_map",
    "translate",
    "batch",
    "slice",
    "round",
    "truncate",
    "tojson",
}
# Their time can grow with the square of the text, and no chat format needs them.
_SLOW_FILTERS = ("wordwrap", "urlize", "striptags", "xmlattr", "pprint")
_WIDE_FORMAT = re.compile(r"\d{5}|\*")

# Filters that templates cannot name, put in by _add_bounds.
_LOOP, _VALUE = "bounded loop", "bounded value"

_steps: ContextVar[list[int] | None] = ContextVar("steps", default=None)


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

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=_spend_on_output,
        )
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters["tojson"] = _tojson
        for name in _SLOW_FILTERS:
            del self.filters[name]
        self.filters = {name: _bounded(name, call) for name, call in self.filters.items()}
        tests: Mapping[str, Any] = self.tests
        self.tests = {name: _bounded(name, call) for name, call in tests.items()}
        self.filters[_LOOP] = _bounded_loop
        self.filters[_VALUE] = _spend_on

    def build(self, source: str) -> Callable[..., str]:
        """The template as a function of its variables; every call has its own budget.

        Raises what jinja2 does: TemplateError, SecurityError among them, and whatever an
        expression raises, such as TypeError.
        """
        tree = self.parse(source)
        _add_bounds(tree)
        template = self.template_class.from_code(self, self.compile(tree), dict(self.globals))

        def render(**variables: Any) -> str:
            token = _steps.set([0])
            try:
                return template.render(**variables)
            finally:
                _steps.reset(token)

        return render

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuses at once, where jinja2 would go on with an undefined value."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function, method or macro within the bounds."""
        # The sandbox wraps str.format in a function of its own.
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        operands = [*args, *kwargs.values()]
        if isinstance(owner, str):
            _check_call(getattr(obj, "__name__", ""), [owner, *operands])
        else:
            _check_call("", operands)
        return _spend_on(super().call(context, obj, *args, **kwargs))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`."""
        return super().getitem(obj, _spend_on(argument))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies `+ * ** %` unless the result would be too large."""
        if operator == "**":
            _refuse_if(_bits(left) * _number(right) > _MAX_BITS, "a power")
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _refuse_if(_bits(left) + _bits(right) > _MAX_BITS, "a product")
        elif operator == "*" or (operator == "%" and isinstance(left, str)):
            _check_call("format" if operator == "%" else "replace", [left, right])
        else:
            _check_call("", [left, right])
        return _spend_on(super().call_binop(context, operator, left, right))


def _add_bounds(tree: nodes.Template) -> None:
    """Makes loops, `~`, `{% set %}` blocks, comparisons and dict keys take from the budget."""
    for loop in tree.find_all(nodes.For):
        if loop.recursive:
            raise SecurityError("recursive loops are not allowed")
        text = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
        loop.iter = _filtered(_LOOP, loop.iter, nodes.Const(text))
    for block in tree.find_all(nodes.AssignBlock):
        block.filter = _filtered(_VALUE, block.filter)
    for concat in list(tree.find_all(nodes.Concat)):
        # A copy inside a filter: the node itself cannot be replaced from here.
        concat.nodes = [_filtered(_VALUE, nodes.Concat(concat.nodes))]
    for compare in tree.find_all(nodes.Compare):
        sides: list[nodes.Compare | nodes.Operand] = [compare, *compare.ops]
        for side in sides:
            if not isinstance(side.expr, nodes.Const):
                side.expr = _filtered(_VALUE, side.expr)
    for pair in tree.find_all(nodes.Pair):
        if not isinstance(pair.key, nodes.Const):
            pair.key = _filtered(_VALUE, pair.key)


def _filtered(name: str, value: nodes.Node | None, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None)


def _bounded_loop(values: Iterable[Any], text: int) -> Iterator[Any]:
    """The values of a loop whose body holds `text` characters of plain text."""
    for value in values:
        _spend(1 + text // _OUTPUT_PER_STEP)
        yield value


def _bounded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)  # keeps the attribute that says jinja2 passes the context first
    def bounded(*args: Any, **kwargs: Any) -> Any:
        operands = args[1:] if hasattr(call, "jinja_pass_arg") else args
        _check_call(name, [*operands, *kwargs.values()])
        return _spend_on(call(*args, **kwargs))

    return bounded


def _check_call(name: str, operands: list[Any]) -> None:
    """Spends on the operands; refuses a multiplying call whose result could be too large."""
    sizes = [_size(operand) for operand in operands]
    _spend(_CALL_STEPS + sum(sizes) // _UNITS_PER_STEP)
    if name not in _MULTIPLYING:
        return
    if name == "format" and operands and isinstance(operands[0], str):
        _refuse_if(_WIDE_FORMAT.search(operands[0]) is not None, "a wide format")
    factors = [max(size, _number(value)) for size, value in zip(sizes, operands, strict=True)]
    product = 1
    for factor in sorted(factors)[-2:]:
        product *= max(factor, 1)
    _refuse_if(product > MAX_SIZE * _ITEM, f"the result of {name!r}")


def _spend_on(value: Any) -> Any:
    _spend(1 + _size(value) // _UNITS_PER_STEP)
    return value


def _spend_on_output(value: Any) -> Any:
    _spend(1 + _size(value) // _OUTPUT_PER_STEP)
    return value


def _spend(steps: int) -> None:
    spent = _steps.get()
    if spent is not None:  # None: constants folded by the compiler
        spent[0] += steps
        if spent[0] > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")


def _size(value: Any) -> int:
    """Characters `value` would print as, roughly; refuses more than MAX_SIZE.

    A value that occurs twice counts twice, as it would print; no more than the limit is visited.
    """
    size, pending = 0, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str | bytes):
            size += len(item)
        elif isinstance(item, Mapping):
            size += _ITEM * len(item)
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list | tuple | set | frozenset):
            size += _ITEM * len(item)
            pending += item
        _refuse_if(size > MAX_SIZE, "a value")
    return size


def _number(value: Any) -> int:
    return int(min(abs(value), MAX_SIZE * _ITEM + 1)) if isinstance(value, int | float) else 0


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _refuse_if(condition: bool, what: str) -> None:
    if condition:
        raise SecurityError(f"{what} is too large")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
