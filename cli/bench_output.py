"""llama-bench's outputs: md, csv, json, jsonl, sql, with its field names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev
from typing import Any

from gguflow.engine.harmless import cell, one_line

from .bench_grid import BenchTest, test_name
from .columns import human_count
from .stream import write

SAMPLES = ("samples_ns", "samples_ts")
_TEXT_FIELDS = ("build_commit", "cpu_info", "gpu_info", "backends", "model_filename", "model_type",
                "tensor_buft_overrides", "type_k", "type_v", "test_time")  # fmt: skip
_REAL_FIELDS = ("avg_ts", "stddev_ts", "t_pp", "speed_pp", "t_tg", "speed_tg", "t", "speed")


def record(
    facts: dict[str, Any], test: BenchTest, test_time: str, ns: Sequence[int]
) -> dict[str, Any]:
    """One result. facts: what holds for the build and the model. ns: time of each repetition."""
    ts = [1e9 * (test.n_prompt + test.n_gen) / n for n in ns]
    return {
        **facts,
        **vars(test),
        "test_time": test_time,
        "avg_ns": round(mean(ns)),
        "stddev_ns": round(stdev(ns)) if len(ns) > 1 else 0,
        "avg_ts": round(mean(ts), 6),
        "stddev_ts": round(stdev(ts), 6) if len(ts) > 1 else 0.0,
        "samples_ns": list(ns),
        "samples_ts": [round(t, 4) for t in ts],
    }


class Output:
    """Writes results as they come. `begin`, then `add` for each, then `end`."""

    def begin(self, tests: Sequence[BenchTest]) -> None:
        """tests: all there will be."""

    def add(self, result: dict[str, Any]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """All results that will come have come."""


class Json(Output):
    """One array on one line."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def add(self, result: dict[str, Any]) -> None:
        self.results.append(result)

    def end(self) -> None:
        write(json.dumps(self.results) + "\n")


class JsonLines(Output):
    def add(self, result: dict[str, Any]) -> None:
        write(json.dumps(result) + "\n")


class Csv(Output):
    def __init__(self) -> None:
        self.n_rows = 0

    def add(self, result: dict[str, Any]) -> None:
        if not self.n_rows:
            self._row(_flat(result))
        self._row(cell(v) if isinstance(v, str) else v for v in _flat(result).values())
        self.n_rows += 1

    def _row(self, cells: Any) -> None:
        line = io.StringIO()
        csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(cells)
        write(line.getvalue())


class Sql(Output):
    def __init__(self) -> None:
        self.created = False

    def add(self, result: dict[str, Any]) -> None:
        flat = _flat(result)
        if not self.created:
            fields = ",\n".join(f"  {name} {_sql_type(name)}" for name in flat)
            write(f"CREATE TABLE IF NOT EXISTS llama_bench (\n{fields}\n);\n\n")
            self.created = True
        values = ", ".join(map(_sql_text, flat.values()))
        write(f"INSERT INTO llama_bench ({', '.join(flat)}) VALUES ({values});\n")


def _sql_text(value: Any) -> str:
    text = one_line(str(int(value) if isinstance(value, bool) else value))
    return "'" + text.replace("'", "''") + "'"


def _flat(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in SAMPLES}


def _sql_type(name: str) -> str:
    return "TEXT" if name in _TEXT_FIELDS else "REAL" if name in _REAL_FIELDS else "INTEGER"


_SETTINGS = {"n_gpu_layers": 0, "n_batch": 2048, "n_ubatch": 512, "type_k": "f16", "type_v": "f16"}
_TITLES = {"n_gpu_layers": "ngl"}
_WIDTHS = {"model": 30, "test": 15, "t/s": 20}


class Markdown(Output):
    """A table a person reads. Settings get a column when they differ or are not the default."""

    def begin(self, tests: Sequence[BenchTest]) -> None:
        self.settings = [
            name for name, usual in _SETTINGS.items()
            if any(getattr(t, name) != usual for t in tests)
        ]  # fmt: skip
        self.names = [
            "model",
            "size",
            "params",
            "backend",
            "threads",
            *self.settings,
            "test",
            "t/s",
        ]
        self._row([_TITLES.get(name, name) for name in self.names])
        rules = ("-" * self._width(n) for n in self.names)
        write("| " + " | ".join(r if i in (0, 3) else r[1:] + ":"
                                for i, r in enumerate(rules)) + " |\n")  # fmt: skip

    def add(self, result: dict[str, Any]) -> None:
        from gguflow.engine.compile import human_bytes

        self._row([
            result["model_type"], human_bytes(result["model_size"]),
            human_count(result["model_n_params"]), result["backends"], str(result["n_threads"]),
            *(str(result[name]) for name in self.settings),
            test_name(result),
            f"{result['avg_ts']:.2f} ± {result['stddev_ts']:.2f}",
        ])  # fmt: skip
        self.build = result["build_commit"]

    def end(self) -> None:
        if hasattr(self, "build"):
            write(f"\nbuild: {self.build}\n")

    def _width(self, name: str) -> int:
        return _WIDTHS.get(name, 10)

    def _row(self, cells: Sequence[str]) -> None:
        padded = (
            c.ljust(self._width(n)) if n in ("model", "backend") else c.rjust(self._width(n))
            for n, c in zip(self.names, map(one_line, cells), strict=True)
        )
        write(f"| {' | '.join(padded)} |\n")


class HeadedTable:
    """A table for each header that results have.

    header: of a result. columns: title, field, width and format of each.
    """

    def __init__(
        self,
        header: Callable[[dict[str, Any]], str],
        columns: Sequence[tuple[str, str, int, str]],
    ) -> None:
        self._header_of, self._columns = header, columns
        self._header = ""

    def add(self, result: dict[str, Any]) -> None:
        header = self._header_of(result)
        if header != self._header:
            write(("\n" if self._header else "") + header + "\n\n")
            self._row(title.rjust(width) for title, _, width, _ in self._columns)
            write("|" + "-|-".join("-" * width for _, _, width, _ in self._columns) + "-|\n")
        self._header = header
        self._row(f"{result[name]:{width}{form}}" for _, name, width, form in self._columns)

    def end(self) -> None:
        """Every row has been written."""

    def _row(self, cells: Iterable[str]) -> None:
        write(f"|{' | '.join(cells)} |\n")


OUTPUTS: dict[str, Callable[[], Output]] = {
    "md": Markdown, "csv": Csv, "json": Json, "jsonl": JsonLines, "sql": Sql,
}  # fmt: skip
