"""What a template's values and calls may cost: sizes, methods, formats, steps.

Nothing is allowed because it is not known to be dangerous: a value has a type that is listed here,
a method is listed with its type. All that is allowed takes time and memory in proportion to sizes
that are counted before it runs.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference, Undefined
from jinja2.utils import Cycler, Joiner, Namespace

from .chat_searches import pieces, search_steps

MAX_STEPS = 1_000_000  # a second or two; a conversation of a thousand messages takes a tenth
MAX_SIZE = 2_000_000  # characters in one value, an item of a list counting as ITEM
MAX_DEPTH = 100  # of lists in lists
MAX_NUMBER = 100_000  # that says how often or how wide
MAX_DIGITS = 400  # that a number is rounded to
MAX_BITS = 4096  # of an integer
ITEM = 16
WRITTEN_PER_STEP = 16  # bytes: what is written all stays in memory
_MADE_PER_STEP = 128  # bytes, which may stay there too
_UNITS_PER_STEP = 1024
_VISITS_PER_STEP = 4  # items that are looked at
_CALL_STEPS = 5

# Methods that a template may call on values of a type. Their time and their result are in
# proportion to the sizes of owner and arguments, or to the product of these (MULTIPLYING).
METHODS: Mapping[type[Any], frozenset[str]] = {
    str: frozenset(
        [
            "capitalize",
            "casefold",
            "center",
            "count",
            "endswith",
            "expandtabs",
            "find",
            "format",
            "index",
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "isidentifier",
            "islower",
            "isnumeric",
            "isprintable",
            "isspace",
            "istitle",
            "isupper",
            "join",
            "ljust",
            "lower",
            "lstrip",
            "partition",
            "removeprefix",
            "removesuffix",
            "replace",
            "rfind",
            "rindex",
            "rjust",
            "rpartition",
            "rsplit",
            "rstrip",
            "split",
            "splitlines",
            "startswith",
            "strip",
            "swapcase",
            "title",
            "upper",
            "zfill",
        ]
    ),
    Mapping: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    int: frozenset(("bit_length", "is_integer")),
    float: frozenset(("is_integer",)),
}
# Their result can be as large as the product of their operands' sizes.
MULTIPLYING = frozenset(
    [
        "batch",
        "center",
        "expandtabs",
        "format",
        "indent",
        "join",
        "ljust",
        "replace",
        "rjust",
        "round",
        "slice",
        "tojson",
        "truncate",
        "zfill",
    ]
)
_SCALARS = (type(None), bool, int, float, slice)
_LISTS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)
# What templates use and cannot make large.
_PARTS = (Undefined, LoopContext, Macro, Cycler, Joiner, BlockReference, TemplateReference)
_CALLABLES = (types.FunctionType, types.MethodType, types.BuiltinMethodType, type)
_NUMBER = re.compile(r"\d+")

_steps: ContextVar[list[int] | None] = ContextVar("steps", default=None)


def with_budget(run: Callable[[], str]) -> str:
    """What `run` returns, with a budget of its own."""
    token = _steps.set([0])
    try:
        return run()
    finally:
        _steps.reset(token)


def spend(steps: int) -> None:
    """Take from the budget; SecurityError when it is used up, or when there is none: nothing of a
    template runs before it is rendered."""
    spent = _steps.get()
    if spent is None:
        raise SecurityError("nothing may run before a template is rendered")
    spent[0] += steps
    if spent[0] > MAX_STEPS:
        raise SecurityError(f"it takes more than {MAX_STEPS} steps")


def looked_at(value: Any) -> Any:
    """The value, whose size is taken from the budget."""
    spend(1 + size(value) // _UNITS_PER_STEP)
    return value


def counted(value: Any) -> Any:
    """A value that was made, its memory taken from the budget. Of an iterator, every item when its
    turn comes."""
    if isinstance(value, Iterator) and not isinstance(value, _PARTS):
        return _each_counted(value)
    spend(1 + memory(value) // _MADE_PER_STEP)
    return value


def _each_counted(values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        spend(1 + memory(value) // _MADE_PER_STEP)
        yield value


def written(value: Any) -> Any:
    """A value that is written, taken from the budget."""
    spend(1 + memory(value) // WRITTEN_PER_STEP)
    return value


def memory(value: Any) -> int:
    """Bytes of a value, roughly; SecurityError as `size`."""
    units = size(value)
    return sys.getsizeof(value) if isinstance(value, str) else 2 * units


def size(value: Any) -> int:
    """Characters `value` would print as, roughly; SecurityError for more than MAX_SIZE, for lists
    nested deeper than MAX_DEPTH and for types that templates have no use for.

    A value that occurs twice counts twice, as it would print; no more than the limit is visited.
    """
    total, visited, pending = 0, 0, [(value, 0)]
    while pending:
        item, depth = pending.pop()
        visited += 1
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, _SCALARS):
            refuse_if(isinstance(item, int) and item.bit_length() > MAX_BITS, "a number")
        elif isinstance(item, Mapping):
            total += ITEM * len(item)
            pending += ((x, depth + 1) for pair in item.items() for x in pair)
        elif isinstance(item, _LISTS):
            total += ITEM * len(item)
            pending += ((x, depth + 1) for x in item)
        elif isinstance(item, range):
            total += ITEM * len(item)
            visited += len(item)  # by whoever makes use of it
        elif isinstance(item, Namespace):
            attributes = dict.copy(object.__getattribute__(item, "_Namespace__attrs"))
            pending.append((attributes, depth))
        elif isinstance(item, Iterator):
            total += ITEM  # its items are counted when they come
        elif not isinstance(item, (*_PARTS, *_CALLABLES)):
            raise SecurityError(f"a value of type {type(item).__name__} is not allowed")
        refuse_if(total > MAX_SIZE, "a value")
        refuse_if(depth > MAX_DEPTH, "the depth of a value")
    if visited >= _VISITS_PER_STEP:
        spend(visited // _VISITS_PER_STEP)
    return total


def check_method(owner: Any, name: str) -> None:
    """Raises SecurityError for a method of a value that is not known to be harmless."""
    for kind, allowed in METHODS.items():
        if isinstance(owner, kind):
            if name not in allowed:
                break
            return
    if not isinstance(owner, _PARTS) or name.startswith("_"):
        raise SecurityError(f"calling {name!r} of a {type(owner).__name__} is not allowed")


def check_call(name: str, operands: list[Any]) -> None:
    """Spends on the operands; refuses a multiplying call whose result could be too large."""
    sizes = [size(operand) for operand in operands]
    spend(_CALL_STEPS + sum(sizes) // _UNITS_PER_STEP + search_steps(name, operands, sizes))
    refuse_if(ITEM * pieces(name, operands) > MAX_SIZE, f"the result of {name!r}")
    if name not in MULTIPLYING:
        return
    most = MAX_DIGITS if name == "round" else MAX_NUMBER
    for operand in operands[1:]:
        refuse_if(_number(operand) > most, f"a number for {name!r}")
    if name == "format" and operands and isinstance(operands[0], str):
        check_format(operands[0])
    if name == "tojson":
        return  # see check_indent
    factors = [max(n, _number(value)) for n, value in zip(sizes, operands, strict=True)]
    product = 1
    for factor in sorted(factors)[-2:]:
        product *= max(factor, 1)
    wide = any(isinstance(x, str) and not x.isascii() for x in operands)
    refuse_if(product * (4 if wide else 1) > MAX_SIZE * ITEM, f"the result of {name!r}")


def check_difference(left: Any, right: Any) -> None:
    """Raises SecurityError for `-` and quotients of what are no numbers: sets have differences.
    Undefined values say themselves what is wrong with them."""
    for value in (left, right):
        if not isinstance(value, (int, float, Undefined)):
            raise SecurityError(f"arithmetic with a {type(value).__name__} is not allowed")


def check_format(form: str) -> None:
    """Widths that a format string asks for, none of which may come from its operands."""
    widths = sum(int(n[:9]) for n in _NUMBER.findall(form))
    refuse_if(widths > MAX_SIZE or "*" in form, "a wide format")
    depth = 0
    for c in form.replace("{{", "").replace("}}", ""):
        depth += (c == "{") - (c == "}")
        refuse_if(depth > 1, "a wide format")


def check_indent(value: Any, indent: int | str | None) -> None:
    """The spaces that JSON of a value gets in front of its lines."""
    width = len(indent) if isinstance(indent, str) else _number(indent)
    spaces = (size(value) + ITEM) * width * _depth(value)
    refuse_if(spaces > MAX_SIZE * ITEM, "the result of 'tojson'")


def _depth(value: Any) -> int:
    """Of lists in lists, at most MAX_DEPTH, of a value whose size was looked at."""
    deepest, pending = 1, [(value, 1)]
    while pending:
        item, depth = pending.pop()
        deepest = max(deepest, depth)
        if isinstance(item, Mapping):
            pending += ((x, depth + 1) for x in item.values())
        elif isinstance(item, _LISTS):
            pending += ((x, depth + 1) for x in item)
    return deepest


def _number(value: Any) -> int:
    return int(min(abs(value), MAX_SIZE * ITEM + 1)) if isinstance(value, int | float) else 0


def bits(value: Any) -> int:
    """Of an integer; those of a machine's number for anything else."""
    return value.bit_length() if isinstance(value, int) else 64


def refuse_if(condition: bool, what: str) -> None:
    """SecurityError saying that something is too large."""
    if condition:
        raise SecurityError(f"{what} is too large")
