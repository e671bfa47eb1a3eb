"""`gguflow inspect`: what a file holds, and what running it would take. Loads no weights."""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from gguflow.engine.harmless import json_text, many_lines
from gguflow.engine.plan_key import step_key

from .columns import columns, human_count
from .errors import OK, UsageError
from .inspect_plan import memory_json, memory_text, plan_json, plan_text
from .inspect_sparse import sparse_facts, sparse_text
from .load import model_path, open_source, prepare
from .options import add_engine, add_model, add_random, engine_options, whole

SUMMARY = "show a file's metadata and tensors, the plan and the memory it takes to run"
EPILOG = "Without --metadata, --tensors, --plan or --memory: metadata and tensors."

SHOWN_ITEMS = 6
SHOWN_TEXT = 100
LONG_TEXT = 1 << 20  # characters that JSON shows in full without being asked


def add_arguments(p: ArgumentParser) -> None:
    add_model(p)
    p.add_argument("path", nargs="?", metavar="FILE", help="the file, in place of -m")
    add_random(p)
    g = p.add_argument_group("what to show")
    g.add_argument("--metadata", action="store_true", help="keys and values")
    g.add_argument("--tensors", action="store_true", help="name, type, shape, bytes, offset")
    g.add_argument("--plan", action="store_true", help="the compiled plan: segments, ops, memory")
    g.add_argument(
        "--tokens",
        type=whole(1),
        default=1,
        metavar="N",
        help="tokens a run of the plan takes (default 1: a generated token)",
    )
    g.add_argument(
        "--memory", action="store_true", help="the exact bytes each device will need, at -c and -ub"
    )
    g.add_argument("--full", action="store_true", help="long arrays and texts in full")
    g.add_argument("--json", action="store_true", help="one JSON document")
    add_engine(p)


def run(args: Namespace) -> int:
    if args.path is not None:
        if args.model is not None:
            raise UsageError("-m/--model and FILE exclude each other")
        args.model = args.path
    wanted = [w for w in ("metadata", "tensors", "plan", "memory") if getattr(args, w)]
    if not wanted:
        wanted = ["plan", "memory"] if args.random else ["metadata", "tensors"]
    if args.random and {"metadata", "tensors"} & set(wanted):
        raise UsageError("--random: a shape without a file has --plan and --memory only")
    parts: dict[str, Any] = {}
    texts: list[str] = []

    if {"metadata", "tensors"} & set(wanted):
        from gguflow.engine.gguf import GgufFile

        # A split of PowerInfer's may hold tensors without elements.
        with GgufFile.open(model_path(args), empty_tensors=True) as f:
            parts["file"] = _file(f)
            texts.append(_file_text(parts["file"]))
            if sparse := sparse_facts(f):
                parts["sparse"] = {k: _json(v) for k, v in sparse.items()}
                texts.append(sparse_text(f, sparse))
            if "metadata" in wanted:
                parts["metadata"] = {k: _value(k, f, args.full) for k in f.metadata}
                texts.append(_metadata_text(f, parts["metadata"]))
            if "tensors" in wanted:
                parts["tensors"] = [_tensor(t) for t in f.tensors.values()]
                texts.append(_tensors_text(parts["tensors"]))
    if {"plan", "memory"} & set(wanted):
        model = prepare(open_source(args), engine_options(args))
        if "plan" in wanted:
            if args.tokens > model.options.n_ctx:
                raise UsageError(
                    f"--tokens {args.tokens}: more than the context of {model.options.n_ctx}"
                )
            plan = model.plan(step_key(args.tokens, "last", True))
            parts["plan"] = plan_json(plan, model)
            texts.append(plan_text(plan, args.tokens, model))
        if "memory" in wanted:
            parts["memory"] = memory_json(model)
            texts.append(memory_text(model))
    if args.json:
        _print_json(parts)
    else:
        print(many_lines("\n\n".join(texts)))
    return OK


# -- the file --------------------------------------------------------------------------------------


def _file(f: Any) -> dict[str, Any]:
    return {
        "path": f.path,
        "magic": f.magic,
        "version": f.version,
        "architecture": _architecture(f),
        "shards": len(f.shards),
        "bytes": f.n_bytes,
        "alignment": f.alignment,
        "big_endian": f.big_endian,
        "n_keys": len(f.metadata),
        "n_tensors": len(f.tensors),
        "n_params": sum(math.prod(t.shape) for t in f.tensors.values()),
    }


def _architecture(f: Any) -> str | None:
    """None where the key is missing or anything else: the table of keys shows what it is."""
    name = f.keys.find("general.architecture")
    return _cut(name) if isinstance(name, str) else None


def _file_text(file: dict[str, Any]) -> str:
    from gguflow.engine.compile import human_bytes

    shards = f" in {file['shards']} shards" if file["shards"] > 1 else ""
    return (
        f"{file['path']}: {file['magic']} v{file['version']}"
        f"{' big-endian' if file['big_endian'] else ''}, {human_bytes(file['bytes'])}{shards}, "
        f"{file['n_keys']} keys, {file['n_tensors']} tensors, "
        f"{human_count(file['n_params'])} parameters, alignment {file['alignment']}"
    )


def _value(key: str, f: Any, full: bool) -> Any:
    """A metadata value as JSON has it; long arrays and very long texts as their type, length and
    what is first in them."""
    value = f.metadata[key]
    if isinstance(value, str) and not full and len(value) > LONG_TEXT:
        return {
            "type": f.types[key], "length": len(value), "first": _scalar(value[:SHOWN_TEXT]),
        }  # fmt: skip
    if isinstance(value, (bool, int, float, str)):
        return _scalar(value)
    if not full and (len(value) > SHOWN_ITEMS or _is_long(value)):
        first = [_cut(x) for x in _plain(value[:SHOWN_ITEMS])]
        return {"type": f.types[key], "length": len(value), "first": first}
    return _plain(value)


def _is_long(values: Any) -> bool:
    return any(isinstance(x, str) and len(x) > LONG_TEXT for x in values[:SHOWN_ITEMS])


def _cut(item: Any) -> Any:
    """A first item, what is beyond a very long one's beginning left out."""
    return f"{item[:SHOWN_TEXT]}..." if isinstance(item, str) and len(item) > LONG_TEXT else item


def _plain(values: Any) -> list[Any]:
    items = values.tolist() if hasattr(values, "tolist") else list(values)
    return [_scalar(x) if isinstance(x, (bool, int, float, str)) else _plain(x) for x in items]


def _json(value: Any) -> Any:
    """A fact or a list of them as JSON has it."""
    if isinstance(value, list):
        return [_json(x) for x in value]
    return _scalar(value) if isinstance(value, float) else value


def _scalar(value: bool | int | float | str) -> bool | int | float | str:
    """What JSON cannot hold becomes text: NaN and infinities, and bytes that are no UTF-8."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


def _metadata_text(f: Any, values: dict[str, Any]) -> str:
    rows = []
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(value["first"], str):
            shown = f"{_dumps(value['first'])}... ({value['length']} characters)"
        elif isinstance(value, dict):
            items = ", ".join(_short(_dumps(x)) for x in value["first"])
            shown = f"[{items}, ...] ({value['length']} items)"
        elif isinstance(value, (str, list)):
            text = _dumps(value)
            shown = text if isinstance(value, list) else _short(text)
        elif f.types[key] == "f32" and isinstance(value, float):
            shown = f"{value:.7g}"  # the digits a float32 has
        else:
            shown = _dumps(value)
        rows.append((key, f.types[key], shown))
    return columns([("key", "type", "value"), *rows])


def _dumps(value: Any) -> str:
    return json_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _print_json(document: dict[str, Any]) -> None:
    """By pieces: a document may be several times the size of what it shows."""
    write = sys.stdout.write
    for piece in json.JSONEncoder(ensure_ascii=False, allow_nan=False).iterencode(document):
        write(json_text(piece))
    write("\n")


def _short(text: str) -> str:
    if len(text) <= SHOWN_TEXT:
        return text
    return f"{text[:SHOWN_TEXT]}... ({len(text)} characters)"


def _tensor(t: Any) -> dict[str, Any]:
    return {
        "name": t.name,
        "type": t.dtype.name,
        "shape": list(t.shape),
        "bytes": t.nbytes,
        "offset": t.offset,
    }


def _tensors_text(tensors: list[dict[str, Any]]) -> str:
    if not tensors:
        return "no tensors"
    rows: list[tuple[object, ...]] = [("tensor", "type", "shape", "bytes", "offset")]
    rows += [(t["name"], t["type"], str(t["shape"]), t["bytes"], t["offset"]) for t in tensors]
    total: dict[str, list[int]] = {}
    for t in tensors:
        of_type = total.setdefault(t["type"], [0, 0])
        of_type[0] += 1
        of_type[1] += t["bytes"]
    by_type = ", ".join(f"{n} {name} ({size} bytes)" for name, (n, size) in total.items())
    return f"{columns(rows, right=(3, 4))}\n{by_type}"
