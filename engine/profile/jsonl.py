"""JSON lines: a header, sparse layers, every step, every op, one object a line. Also read back."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import asdict
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TextIO, get_args, get_origin, get_type_hints

from gguflow.engine.dataclass import dataclass, fields
from gguflow.engine.harmless import json_text, one_line
from gguflow.engine.opened import open_file

from .errors import ProfileFileError
from .peaks import Peaks
from .record import ActivityRow, Header, OpRow, Recording, StepRow

FORMAT = 1
MOST_LINE = 16 << 20  # bytes; an op's row has some hundred
_DIGITS = {
    "start_us": 3, "us": 3, "wall_us": 3, "host_us": 3, "gbs": 4, "gflops": 4, "share": 5,
    "active": 6, "computed": 6, "recall": 6,
}  # fmt: skip


def write_jsonl(recording: Recording, out: TextIO) -> None:
    """One JSON object a line: the header, the activity, the steps, the ops."""
    encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

    def dump(value: Any) -> str:
        return json_text(encode(value))

    header = {"kind": "header", "format": FORMAT, **asdict(recording.header)}
    out.write(dump(header) + "\n")
    for layer in recording.activity:
        out.write(dump(_object("activity", layer)) + "\n")
    for step in recording.steps:
        out.write(dump(_object("step", step)) + "\n")
    for row in recording.rows():
        out.write(dump(_object("op", row)) + "\n")


def _object(kind: str, row: OpRow | StepRow | ActivityRow) -> dict[str, Any]:
    obj: dict[str, Any] = {"kind": kind}
    for name in row.__slots__:
        value = getattr(row, name)
        obj[name] = round(value, _DIGITS[name]) if isinstance(value, float) else value
    return obj


@dataclass(slots=True)
class Dump:
    """A recording read back from a file."""

    header: Header
    steps: list[StepRow]
    ops: list[OpRow]
    activity: list[ActivityRow]

    def rows(self, only: Container[int] | None = None) -> Iterator[OpRow]:
        """The rows of all steps, or of the steps numbered in `only`, in the order they ran."""
        return (r for r in self.ops if only is None or r.step in only)


def load_jsonl(path: str | Path) -> Dump:
    """Read a dump back. Raises ProfileFileError naming the file, the line and the field."""
    path = Path(path)
    header: Header | None = None
    steps: list[StepRow] = []
    ops: list[OpRow] = []
    activity: list[ActivityRow] = []
    try:
        with open_file(path) as file:
            for number, raw in enumerate(iter(lambda: file.readline(MOST_LINE + 1), b""), 1):
                where = f"{path}:{number}"
                if len(raw) > MOST_LINE:
                    raise ProfileFileError(f"{where}: a line of more than {MOST_LINE >> 20} MiB")
                obj = _parse(raw.decode("utf-8"), where)
                kind = obj.get("kind")
                if number == 1:
                    header = _header(obj, where)
                elif kind == "step":
                    steps.append(StepRow(**_checked(obj, StepRow, where)))
                elif kind == "op":
                    ops.append(_op_row(obj, where))
                elif kind == "activity":
                    activity.append(ActivityRow(**_checked(obj, ActivityRow, where)))
                else:
                    raise ProfileFileError(
                        f'{where}: kind is {kind!r}, expected "step", "op" or "activity" after '
                        "the first line"
                    )
    except UnicodeDecodeError as e:
        raise ProfileFileError(f"{path}: not a profile: no UTF-8 text at byte {e.start}") from None
    except OSError as e:
        raise ProfileFileError(f"{path}: {e.strerror or e}") from None
    if header is None:
        raise ProfileFileError(f"{path}: empty, expected a profile written with a .jsonl ending")
    phases = {s.step: s.phase for s in steps}
    if orphan := next((r for r in ops if phases.get(r.step) != r.phase), None):
        raise ProfileFileError(
            f"{path}: {orphan.name} is of {orphan.phase} step {orphan.step}, which has no line"
        )
    return Dump(header, steps, ops, activity)


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        obj = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as e:
        raise ProfileFileError(f"{where}: not a line of JSON ({e})") from None
    if not isinstance(obj, dict):
        raise ProfileFileError(f"{where}: {type(obj).__name__}, expected a JSON object")
    return obj


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _op_row(obj: dict[str, Any], where: str) -> OpRow:
    row = OpRow(**_checked(obj, OpRow, where))
    if not all(isinstance(s, list) and all(type(n) is int for n in s) for s in row.shapes):
        raise ProfileFileError(f"{where}: field 'shapes' is {row.shapes!r}, expected integer lists")
    if len(row.types) != len(row.shapes) or not all(isinstance(t, str) for t in row.types):
        raise ProfileFileError(f"{where}: field 'types' is {row.types!r}, expected one a shape")
    return row


def _header(obj: dict[str, Any], where: str) -> Header:
    if obj.get("kind") != "header":
        raise ProfileFileError(f'{where}: kind is {obj.get("kind")!r}, expected "header"')
    if obj.get("format") != FORMAT:
        raise ProfileFileError(
            f"{where}: format {obj.get('format')!r}, this version reads {FORMAT}"
        )
    header = Header(**_checked(obj, Header, where))
    for backend, values in header.peaks.items():
        if not isinstance(values, dict):
            raise ProfileFileError(f"{where}: field 'peaks.{backend}' is not an object")
        header.peaks[backend] = Peaks(**_checked(values, Peaks, f"{where}: peaks.{backend}"))
    return header


# Which JSON types a field may have; lists and dictionaries are told apart but not looked into.
_JSON_TYPES: dict[type, dict[str, tuple[type, ...]]] = {}


def _json_types(cls: type) -> dict[str, tuple[type, ...]]:
    if cls not in _JSON_TYPES:
        hints = get_type_hints(cls)
        table = {}
        for f in fields(cls):
            hint = hints[f.name]
            options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            found = {get_origin(o) or o for o in options}
            table[f.name] = tuple(found | ({int} if float in found else set()))
        _JSON_TYPES[cls] = table
    return _JSON_TYPES[cls]


def _checked(obj: dict[str, Any], cls: type, where: str) -> dict[str, Any]:
    """The fields of `cls` in `obj`, each of the type it declares; fields not known are left out."""
    values = {}
    for name, types in _json_types(cls).items():
        if name not in obj:
            raise ProfileFileError(f"{where}: field {name!r} is missing")
        value = obj[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join("null" if t is NoneType else t.__name__ for t in types)
            raise ProfileFileError(f"{where}: field {name!r} is {value!r}, expected {wanted}")
        values[name] = _harmless(value)
    return values


def _harmless(value: Any) -> Any:
    """Names in a dump are a stranger's: one line each, wherever they are shown."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list):
        return [_harmless(x) for x in value]
    if isinstance(value, dict):
        return {_harmless(k): _harmless(x) for k, x in value.items()}
    return value
