"""Dataclasses whose methods are compiled at their first call.

`dataclasses` compiles up to six methods of a class while its module is imported: half a millisecond
a class. A start makes a hundred of them, has instances of half, and compares few. Here a class gets
the same methods, each compiled when it is first called; from then on it is what `dataclasses` would
have made.

To the type checker these are the functions of `dataclasses`, and what that module does with classes
of its own (`fields`, `replace`, `asdict`, `is_dataclass`, subclasses) it does with these. Of its
options there are those in use. Annotations have to be text, as `from __future__ import annotations`
makes them; a class of this kind inherits from no dataclass of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import recursive_repr

TYPE_CHECKING = False  # to import the name takes longer
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
    from typing import Any


class _None:
    """No default, since None can be one; in signatures, of a field that has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_NONE: Any = _None()
_MADE = "_dataclass_made"  # the attribute with what is known of a class


class Field:
    """A field of a class, with the names that `dataclasses.Field` has."""

    __slots__ = ("name", "type", "default", "default_factory", "compare")

    def __init__(self, default: Any, default_factory: Any = _NONE, compare: bool = True) -> None:
        self.name = self.type = ""
        self.default = default
        self.default_factory = default_factory
        self.compare = compare

    @property
    def needed(self) -> bool:
        """Whether a call has to give it."""
        return self.default is _NONE and self.default_factory is _NONE


class _Made:
    """A class's fields, inherited ones first, and how it was decorated."""

    __slots__ = ("fields", "frozen", "eq")

    def __init__(self, fields: dict[str, Field], frozen: bool, eq: bool) -> None:
        self.fields, self.frozen, self.eq = fields, frozen, eq


def _dataclass(
    cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, slots: bool = False
) -> Any:
    """The decorator. Raises TypeError and ValueError for fields that `dataclasses` refuses."""

    def make(cls: type) -> type:
        made = _Made(_fields_of(cls), frozen, eq)
        if slots:
            cls = _with_slots(cls, made)
        _give_methods(cls, made)
        return cls

    return make if cls is None else make(cls)


def _field(*, default: Any = _NONE, default_factory: Any = _NONE, compare: bool = True) -> Any:
    return Field(default, default_factory, compare)


def _fields(of: Any) -> tuple[Field, ...]:
    """The fields of a class or an instance, in the order of their definition."""
    return tuple(getattr(of, _MADE).fields.values())


def _replace(of: Any, /, **changes: Any) -> Any:
    """Another instance, with other values in some fields."""
    for name in getattr(of, _MADE).fields:
        if name not in changes:
            changes[name] = getattr(of, name)
    return of.__class__(**changes)


def _fields_of(cls: type) -> dict[str, Field]:
    """Inherited fields and those a class annotates, whose defaults stay as its attributes."""
    found: dict[str, Field] = {}
    for base in cls.__mro__[:0:-1]:
        if _MADE in base.__dict__:
            found.update(base.__dict__[_MADE].fields)
        elif "__dataclass_fields__" in base.__dict__:
            raise TypeError(f"{cls.__name__} inherits from {base.__name__}, of `dataclasses`")
    for name, kind in cls.__annotations__.items():
        if not kind.startswith("ClassVar"):
            found[name] = _own_field(cls, name)
            found[name].name, found[name].type = name, kind
    optional = ""
    for f in found.values():
        if not f.needed:
            optional = f.name
        elif optional:
            raise TypeError(f"{cls.__name__}: {f.name} has no default, and follows {optional}")
    return found


def _own_field(cls: type, name: str) -> Field:
    given = cls.__dict__.get(name, _NONE)
    if not isinstance(given, Field):
        own = Field(given)
    elif given.default is _NONE:
        own = given
        delattr(cls, name)
    else:
        own = given
        setattr(cls, name, own.default)
    if own.default.__class__.__hash__ is None:
        raise ValueError(f"{cls.__name__}: all instances would share one default of {name}")
    return own


def _give_methods(cls: type, made: _Made) -> None:
    own = cls.__dict__
    methods: dict[str, Any] = {
        _MADE: made,
        "__init__": _later(cls, "__init__", _init, {n: f.type for n, f in made.fields.items()}),
        "__repr__": _repr,
        "__match_args__": tuple(made.fields),
        "__signature__": _Signature(),
        "__dataclass_fields__": _Counterpart("__dataclass_fields__"),
        "__dataclass_params__": _Counterpart("__dataclass_params__"),
    }
    if made.frozen:
        methods["__setattr__"], methods["__delattr__"] = _refusals(cls, frozenset(made.fields))
    if made.eq:
        methods["__eq__"] = _later(cls, "__eq__", _eq)
        # Python gives a class with an __eq__ of its own None for a hash.
        if "__hash__" not in own or (own["__hash__"] is None and "__eq__" in own):
            hashed = _later(cls, "__hash__", _hash) if made.frozen else None
            type.__setattr__(cls, "__hash__", hashed)
    for name, method in methods.items():
        if name not in own:
            type.__setattr__(cls, name, method)


def _later(
    cls: type,
    name: str,
    source: Callable[[type, dict[str, Any]], str],
    types: Mapping[str, str | None] = {},  # noqa: B006  # nobody changes it
) -> Any:
    """A method that compiles itself, takes its own place, and goes on. types: of its arguments."""

    def compiled() -> Any:
        names: dict[str, Any] = {"__name__": cls.__module__}
        exec(source(cls, names), names)
        method = names[name]
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        method.__annotations__ = first.__annotations__
        setattr(cls, name, method)
        return method

    def first(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return compiled()(self, *args, **kwargs)

    first.compiled = compiled  # type: ignore[attr-defined]
    first.__annotations__ = {**types, "return": None}
    return first


def _init(cls: type, names: dict[str, Any]) -> str:
    """The source of `__init__`; the objects that it calls by name go into `names`."""
    made: _Made = cls.__dict__[_MADE]
    names |= {"_none": _NONE, "_set": object.__setattr__}
    takes, body = ["self"], []
    for name, f in made.fields.items():
        value = name
        if f.default_factory is not _NONE:
            takes.append(f"{name}=_none")
            names[f"_make_{name}"] = f.default_factory
            value = f"_make_{name}() if {name} is _none else {name}"
        elif f.default is not _NONE:
            takes.append(f"{name}=_default_{name}")
            names[f"_default_{name}"] = f.default
        else:
            takes.append(name)
        body.append(f"_set(self, {name!r}, {value})" if made.frozen else f"self.{name} = {value}")
    body.append("self.__post_init__()" if hasattr(cls, "__post_init__") else "pass")
    return f"def __init__({', '.join(takes)}):\n " + "\n ".join(body)


def _eq(cls: type, names: dict[str, Any]) -> str:
    return (
        "def __eq__(self, other):\n"
        " if other.__class__ is self.__class__:\n"
        f"  return {_compared(cls, 'self')} == {_compared(cls, 'other')}\n"
        " return NotImplemented"
    )


def _hash(cls: type, names: dict[str, Any]) -> str:
    return f"def __hash__(self):\n return hash({_compared(cls, 'self')})"


def _compared(cls: type, of: str) -> str:
    found: dict[str, Field] = cls.__dict__[_MADE].fields
    return "(" + "".join(f"{of}.{name}, " for name, f in found.items() if f.compare) + ")"


@recursive_repr()
def _repr(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in _fields(self))
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _refusals(cls: type, found: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    """`__setattr__` and `__delattr__` of a frozen class; other subclasses have attributes of their
    own."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in found:
            raise _frozen(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in found:
            raise _frozen(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    return set_attribute, delete_attribute


def _frozen(what: str) -> Exception:
    from dataclasses import FrozenInstanceError

    return FrozenInstanceError(what)


def _with_slots(cls: type, made: _Made) -> type:
    """The class once more, since only a new one can have slots."""
    taken = {slot for base in cls.__mro__[1:] for slot in getattr(base, "__slots__", ())}
    without = {*made.fields, "__dict__", "__weakref__"}
    names = {k: v for k, v in cls.__dict__.items() if k not in without}
    names["__slots__"] = tuple(n for n in made.fields if n not in taken)
    names["__qualname__"] = cls.__qualname__
    if made.frozen:  # copies and pickles are filled in past `__setattr__`
        names["__getstate__"], names["__setstate__"] = _state, _set_state
    return type(cls)(cls.__name__, cls.__bases__, names)


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in _fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for f, value in zip(_fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


class _Signature:
    """That of a class, which is that of its `__init__`."""

    def __get__(self, of: object, cls: type) -> Any:
        from inspect import signature

        if of is not None:
            raise AttributeError("__signature__")
        init: Any = cls.__init__  # type: ignore[misc]
        found = signature(init.compiled() if hasattr(init, "compiled") else init)
        return found.replace(parameters=[*found.parameters.values()][1:])


class _Counterpart:
    """An attribute by which `dataclasses` knows its classes, made by it once it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, of: object, cls: type) -> Any:
        from dataclasses import field, make_dataclass

        cls = next(c for c in cls.__mro__ if _MADE in c.__dict__)
        made: _Made = cls.__dict__[_MADE]
        rows: list[tuple[str, Any, Any]] = []
        for f in made.fields.values():
            defaults = {k: getattr(f, k) for k in ("default", "default_factory")}
            given = {k: v for k, v in defaults.items() if v is not _NONE}
            rows.append((f.name, f.type, field(compare=f.compare, **given)))
        twin = make_dataclass(cls.__name__, rows, frozen=made.frozen, eq=made.eq)
        found = getattr(twin, self._name)
        setattr(cls, self._name, found)
        return found


if not TYPE_CHECKING:
    dataclass, field, fields, replace = _dataclass, _field, _fields, _replace
