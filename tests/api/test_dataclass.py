"""Dataclasses with methods that are compiled late are those of `dataclasses` otherwise."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from gguflow.engine import dataclass as late
from gguflow.engine.compile.rules.base import Rewrite
from gguflow.engine.plan_key import PlanKey
from gguflow.engine.profile.plan_rows import PlanRow
from gguflow.engine.sampling import SamplerSettings

MADE: dict[str, Callable[[Any], dict[str, type]]] = {}


def described(make: Callable[[Any], dict[str, type]]) -> Callable[[Any], dict[str, type]]:
    """Registers classes to be made by either module."""
    MADE[make.__name__] = make
    return make


@described
def plain(by: Any) -> dict[str, type]:
    @by.dataclass
    class Point:
        x: int
        y: float = 1.5
        tags: list[str] = by.field(default_factory=list)
        seen: int = by.field(default=0, compare=False)
        kind: ClassVar[str] = "point"

    return {"C": Point}


@described
def frozen(by: Any) -> dict[str, type]:
    @by.dataclass(frozen=True)
    class Key:
        x: int
        y: float = 1.5
        tags: tuple[str, ...] = ()
        seen: int = by.field(default=0, compare=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError(f"not {self}")

    return {"C": Key}


@described
def inherited(by: Any) -> dict[str, type]:
    @by.dataclass(frozen=True)
    class Base:
        x: int
        y: float = 2.5

    @by.dataclass(frozen=True)
    class Derived(Base):
        y: float = 3.5
        tags: tuple[str, ...] = by.field(default_factory=tuple)
        seen: int = 0

    return {"C": Derived, "Base": Base}


@described
def by_identity(by: Any) -> dict[str, type]:
    @by.dataclass(frozen=True, eq=False)
    class Same:
        x: int
        y: float = 1.5
        tags: tuple[str, ...] = ()
        seen: int = 0

    return {"C": Same}


@described
def slotted(by: Any) -> dict[str, type]:
    @by.dataclass(slots=True)
    class Slots:
        """With slots."""

        x: int
        y: float = 1.5
        tags: list[str] = by.field(default_factory=list)
        seen: int = 0

    return {"C": Slots}


@described
def frozen_slots(by: Any) -> dict[str, type]:
    @by.dataclass(frozen=True, slots=True)
    class FrozenSlots:
        x: int
        y: float = 1.5
        tags: tuple[str, ...] = ()
        seen: int = 0

    return {"C": FrozenSlots}


@described
def own_methods(by: Any) -> dict[str, type]:
    @by.dataclass(frozen=True)
    class Own:
        x: int
        y: float = 1.5
        tags: tuple[str, ...] = ()
        seen: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.x == other.x

        def __repr__(self) -> str:
            return f"<{self.x}>"

    return {"C": Own}


def outcome(ask: Callable[[], Any]) -> Any:
    """What comes of something, errors by kind and text."""
    try:
        return ask()
    except Exception as e:
        return type(e), str(e).replace("'", "").replace("__", "")


def facts(cls: Any, by: Any) -> dict[str, Any]:
    """What can be seen of a class from outside."""

    def assigned(o: Any, name: str) -> Any:
        setattr(o, name, 7)
        return getattr(o, name)

    def deleted(o: Any, name: str) -> Any:
        delattr(o, name)
        return hasattr(o, name)

    a, b, c = cls(1), cls(x=1, y=1.5, seen=4), cls(2, math.nan)
    found = {
        "text": [repr(a), str(b), repr(c)],
        "equal": [a == b, a == c, a == a, c == c, a != b, a == 1, cls(1) == a],
        "hash": outcome(lambda: hash(a) == hash(cls(1))),
        "none": cls.__hash__ is None,
        "set": len({a, cls(1)}) if cls.__hash__ else None,
        "too few": outcome(cls),
        "too many": outcome(lambda: cls(1, 2, 3, 4, 5)),
        "unknown": outcome(lambda: cls(1, z=2)),
        "replaced": repr(by.replace(a, y=9.0)),
        "badly replaced": outcome(lambda: by.replace(a, z=2)),
        "negative": outcome(lambda: repr(cls(-1))),
        "names": [f.name for f in by.fields(cls)] + [f.name for f in by.fields(a)],
        "compared": [f.compare for f in by.fields(cls)],
        "assigned": outcome(lambda: assigned(cls(1), "x")),
        "another": outcome(lambda: assigned(cls(1), "w")),
        "deleted": outcome(lambda: deleted(cls(1), "y")),
        "positions": cls.__match_args__,
        "signature": str(inspect.signature(cls)),
        "defaults": [getattr(cls, n, "-") for n in ("y", "kind") if not hasattr(cls, "__slots__")],
        "fresh": cls(1).tags is cls(1).tags,
        "copy": repr(copy.deepcopy(a)),
        "name": cls.__qualname__.rpartition(".")[2],
        "attributes": hasattr(a, "__dict__"),
    }
    sub = type("Sub", (cls,), {})
    found["of a subclass"] = [
        repr(sub(1)).rpartition(".")[2],
        sub(1) == a,
        outcome(lambda: assigned(sub(1), "w")),
        outcome(lambda: assigned(sub(1), "x")),
    ]
    return found


@pytest.mark.parametrize("name", MADE)
def test_classes_are_those_of_dataclasses(name: str) -> None:
    got = facts(MADE[name](late)["C"], late)
    want = facts(MADE[name](dataclasses)["C"], dataclasses)
    differs = {k for k in want if got[k] != want[k]}
    if name == "frozen_slots":  # whose refusals are TypeErrors about super() there
        differs -= {"assigned", "another", "deleted", "of a subclass"}
    assert not differs, (got, want)


@pytest.mark.parametrize("name", MADE)
def test_dataclasses_knows_them(name: str) -> None:
    ours, theirs = MADE[name](late)["C"], MADE[name](dataclasses)["C"]
    assert dataclasses.is_dataclass(ours) and dataclasses.is_dataclass(ours(1))
    assert dataclasses.asdict(ours(1)) == dataclasses.asdict(theirs(1))
    assert repr(dataclasses.replace(ours(1), y=4.0)) == repr(theirs(1, 4.0))
    a, b = dataclasses.fields(ours), dataclasses.fields(theirs)
    assert [(f.name, f.type, f.default, f.compare) for f in a] == [
        (f.name, f.type, f.default, f.compare) for f in b
    ]

    @dataclasses.dataclass(frozen=theirs.__dataclass_params__.frozen)
    class More(ours):  # type: ignore[misc, valid-type]
        more: int = 5

    assert dataclasses.asdict(More(1)) == dataclasses.asdict(theirs(1)) | {"more": 5}


def test_methods_are_compiled_when_they_are_called() -> None:
    made = frozen(late)["C"]
    before = {n: made.__dict__[n] for n in ("__init__", "__eq__", "__hash__")}
    a, b = made(1), made(1)
    assert made.__dict__["__init__"] is not before["__init__"]
    assert made.__dict__["__eq__"] is before["__eq__"]
    assert a == b and hash(a) == hash(b)
    after = {n: made.__dict__[n] for n in before}
    assert made(2) != a and hash(made(2)) == hash(made(2))
    assert all(made.__dict__[n] is after[n] is not before[n] for n in before)


def test_a_subclass_leaves_its_base_alone() -> None:
    made = inherited(late)
    derived, base = made["C"](1), made["Base"](1)
    assert (derived.y, base.y) == (3.5, 2.5) and derived != base
    assert repr(base).endswith("Base(x=1, y=2.5)")


def test_what_refers_to_itself_has_a_text() -> None:
    a = plain(late)["C"](1)
    a.tags.append(a)
    assert repr(a).endswith("tags=[...], seen=0)")


KEPT = (
    PlanKey(1, 0, 1, 1),
    SamplerSettings(),
    PlanRow("a", "rope", "cpu", "", ((1,),), ("f32",), 0, 0),
)


@pytest.mark.parametrize("o", KEPT, ids=lambda o: type(o).__name__)
def test_they_are_copied(o: Any) -> None:
    for again in (copy.copy(o), copy.deepcopy(o)):  # as pickles are read and written
        assert again == o and again is not o


def test_a_pattern_takes_them_apart() -> None:
    match frozen(late)["C"](1, 2.0):
        case object(x=1, y=y):
            assert y == 2.0
    made: Any = Rewrite
    assert made.__match_args__ == tuple(f.name for f in late.fields(Rewrite))


def test_fields_that_no_call_could_give_are_refused() -> None:
    class Gap:
        x: int = 1
        y: int

    class Shared:
        x: list[int] = []

    class Old(MADE["plain"](dataclasses)["C"]):  # type: ignore[misc]
        z: int = 1

    with pytest.raises(TypeError, match="y has no default, and follows x"):
        late.dataclass(Gap)
    with pytest.raises(ValueError, match="share one default of x"):
        late.dataclass(Shared)
    with pytest.raises(TypeError, match="inherits from Point, of `dataclasses`"):
        late.dataclass(Old)
    with pytest.raises(TypeError):
        late.field(init=False)


RECORDED = """
import dataclasses, sys
made, own = [], dataclasses.dataclass
def dataclass(cls=None, /, **options):
    made.append(sys._getframe(1).f_globals["__name__"])
    return own(cls, **options)
dataclasses.dataclass = dataclass
from gguflow.cli.main import main
code = main(["generate", "-n", "1"])
print([name for name in made if name.startswith("gguflow.")])
sys.exit(code)
"""


def test_a_start_makes_no_class_by_dataclasses() -> None:
    done = subprocess.run([sys.executable, "-c", RECORDED], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]"
