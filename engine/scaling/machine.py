"""The constants of a machine: measured ones in a file, or presets that say where they come from."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gguflow.engine.dataclass import dataclass, fields, replace
from gguflow.engine.files import read_file

Curve = tuple[tuple[float, float], ...]


class MachineError(ValueError):
    """A file of constants that cannot be used: names the file and the field."""


@dataclass(frozen=True)
class Machine:
    """What a forecast knows of a kind of machine; all figures are those that kernels reach.

    name; source: where the figures come from. memory_gib: of a device. read_gbs: GB/s read from
    memory. f32_tflops, f16_tflops, quant_tflops: tera operations a second of products whose weights
    are float32, 16-bit, quantized. unpack_ps: picoseconds a quantized weight takes where unpacking
    has a time of its own (`Work.unpacked`), whatever the number of rows. kernel_us: of an op that
    reads weights or a cache, beside its reading: launch, ramp and tail. many_us: of a product of
    more than a few rows beside that: they are rounded first, and parts of sums added. small_us: of
    any other op.

    exchange: (bytes, us) of a sum between two devices, ascending, of those that come at once;
    apart_us: that one comes later. link_gbs: between two devices,
    for what is longer than that. hop_us: a small value from one device to the next. wire_us,
    wire_gbs: the same between two machines; for one token there and back, twice wire_us.
    """

    name: str
    source: str
    memory_gib: float
    read_gbs: float
    f32_tflops: float
    f16_tflops: float
    quant_tflops: float
    unpack_ps: float = 0.0
    kernel_us: float = 0.0
    many_us: float = 0.0
    small_us: float = 0.0
    exchange: Curve = ()
    apart_us: float = 0.0
    link_gbs: float = math.inf
    hop_us: float = 0.0
    wire_us: float = 0.0
    wire_gbs: float = math.inf

    @property
    def memory(self) -> int:
        """Bytes of a device."""
        return int(self.memory_gib * (1 << 30))

    def wired(self, us: float | None, gbs: float | None) -> Machine:
        """The same with another wire_us, wire_gbs; None: its own."""
        us, gbs = (self.wire_us if us is None else us), (self.wire_gbs if gbs is None else gbs)
        return replace(self, wire_us=us, wire_gbs=gbs)

    def json(self) -> str:
        """As a file that `find_machine` reads; without bounds that are infinite."""
        return json.dumps({k: v for k, v in asdict(self).items() if v != math.inf}, indent=1)


_NVLINK = (
    (1024.0, 1.94), (16384.0, 2.32), (65536.0, 2.68), (262144.0, 3.79), (1048576.0, 6.42),
    (4194304.0, 15.32), (16777216.0, 51.52),
)  # fmt: skip
# Measured: read_gbs (256 MiB), small_us, exchange, link_gbs, hop_us (4,096 floats, then a flag),
# wire_us (half of there and back); assumed: wire_gbs. Fitted together, to the rows that
# bench/scaling_check.py calls so: the two tflops, unpack_ps, kernel_us and many_us; before them,
# beside other rows, apart_us.
H200 = Machine(
    "h200",
    "one H200 and two of one host over NVLink; wire: Ray calls on one machine",
    memory_gib=139.0,
    read_gbs=4300.0,
    f32_tflops=45.0,
    f16_tflops=798.0,
    quant_tflops=566.0,
    unpack_ps=83.0e-3,
    kernel_us=3.53,
    many_us=5.35,
    small_us=0.97,  # a kernel of a graph of dependent tiny ones
    exchange=_NVLINK,
    apart_us=2.38,
    link_gbs=389.0,
    hop_us=4.9,
    wire_us=570.0,
    wire_gbs=12.5,
)
# read_gbs: measured. Fitted: the other rates, to prompts of 128 of TinyLlama-1.1B in Q4_0 and F16.
ZEN4 = Machine(
    "zen4-2c",
    "two cores of an AMD EPYC (Zen 4); wire: Ray calls on one machine",
    memory_gib=16.0,
    read_gbs=33.0,
    f32_tflops=0.2,
    f16_tflops=0.197,
    quant_tflops=0.635,
    wire_us=570.0,
    wire_gbs=1.25,
)
PRESETS = {m.name: m for m in (H200, ZEN4)}


def find_machine(name: str) -> Machine:
    """A preset, or the constants in a JSON file. Raises LookupError for neither, MachineError for a
    file that is none, OSError for one that cannot be read."""
    if name in PRESETS:
        return PRESETS[name]
    if not Path(name).exists():
        raise LookupError(f"{name}: no such file, and no machine of that name; there are "
                          f"{', '.join(PRESETS)}")  # fmt: skip
    try:
        found = json.loads(read_file(name).decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise MachineError(f"{name}: not JSON: {e}") from None
    return _machine(name, found)


def _machine(path: str, found: Any) -> Machine:
    if not isinstance(found, dict):
        raise MachineError(f"{path}: expected a JSON object")
    known = {f.name: f for f in fields(Machine)}
    for name in found:
        if name not in known:
            raise MachineError(f"{path}: {name}: no constant of a machine")
    for name in ("name", "source"):
        if not isinstance(found.get(name), str):
            raise MachineError(f"{path}: {name}: expected a text")
    # Nothing works at no speed, so a rate is above 0; a latency may be 0.
    for name in known.keys() - {"name", "source", "exchange"}:
        rate = name.endswith(("_gib", "_gbs", "_tflops"))
        if name in found:
            _check(path, name, found[name], rate)
        elif name in ("memory_gib", "read_gbs", "f32_tflops", "f16_tflops", "quant_tflops"):
            raise MachineError(f"{path}: {name}: missing")
    return Machine(**{**found, "exchange": _curve(path, found.get("exchange", []))})


def _check(path: str, name: str, value: Any, above_0: bool) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (above_0 and not value):
        least = "above 0" if above_0 else "from 0 on"
        raise MachineError(f"{path}: {name}: expected a number {least}")


def _curve(path: str, points: Any) -> Curve:
    pairs = isinstance(points, list) and all(isinstance(p, list) and len(p) == 2 for p in points)
    if not pairs:
        raise MachineError(f"{path}: exchange: expected a list of [bytes, us]")
    for nbytes, us in points:
        _check(path, "exchange", nbytes, True)
        _check(path, "exchange", us, False)
    curve = tuple((float(nbytes), float(us)) for nbytes, us in points)
    if any(b <= a or t < s for (a, s), (b, t) in zip(curve, curve[1:], strict=False)):
        raise MachineError(f"{path}: exchange: bytes must rise, and times must not fall")
    return curve
