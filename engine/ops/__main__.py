"""The table of all ops as Markdown, made from the registry.

python -m gguflow.engine.ops                       # to the terminal
python -m gguflow.engine.ops --write docs/ops.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ..graph import OpSpec, all_ops

_KERNEL = re.compile(r"^\s*GF_KERNEL\((\w+)\)", re.MULTILINE)  # C++
_OPS = re.compile(r"^OPS = \(([^)]*)\)", re.MULTILINE)  # CUDA: the launch file beside the .cu

_HEAD = """# Ops

Made by `python -m gguflow.engine.ops --write docs/ops.md` from the specifications in `engine/ops/`;
do not edit. A file there defines each op: shapes, numpy reference, cost, test cases.

Shapes are in numpy order, outermost dimension first; `?` marks an optional operand or dimension.
Parameters stand in the order of the kernels' parameter block. Operations are what `flops` counts.
Tolerance is the NMSE allowed between a kernel and the reference; 0 means equal. Some cases set
their own: see the op's file. Every op runs on the numpy backend; the last column names the native
ones.

"""


def kernels() -> dict[str, set[str]]:
    """Backend -> the ops it has a kernel for, read from the sources: `GF_KERNEL(op)`, `OPS`."""
    package = find_spec("gguflow.kernels")
    found: dict[str, set[str]] = {}
    # An editable install spreads a package over several folders.
    for root in (package and package.submodule_search_locations) or ():
        for source in sorted(Path(root).glob("*/*")):
            if source.suffix in (".cpp", ".py"):
                text = source.read_text(encoding="utf-8")
                names = _KERNEL.findall(text)
                names += re.findall(r'"(\w+)"', " ".join(_OPS.findall(text)))
                found.setdefault(source.parent.name, set()).update(names)
    return {name: ops for name, ops in found.items() if ops}


def table(found: Mapping[str, set[str]]) -> str:
    """The whole page. found: backend -> ops it has a kernel for."""
    columns = ("op", "computes", "operands", "parameters", "fused from", "operations", "tolerance",
               "native kernels")  # fmt: skip
    rows = [columns, ("---",) * len(columns), *(_row(spec, found) for spec in all_ops())]
    lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
    return _HEAD + "\n".join(lines) + "\n"


def _row(spec: OpSpec, found: Mapping[str, set[str]]) -> tuple[str, ...]:
    operands = "<br>".join(f"`{o.split()[0]}` {o.partition(' ')[2]}" for o in spec.operands)
    params = []
    for p in spec.params:
        text = f"`{p.name}`"
        if p.choices:
            text += f" ({', '.join(p.choices)})"
        if p.default is not None:
            text += f" = {p.default:g}"
        params.append(f"{text}: {p.doc}" if p.doc else text)
    fused = " + ".join(f"`{name}`" for name in spec.fused_from)
    native = ", ".join(name for name in sorted(found) if spec.name in found[name])
    return (f"`{spec.name}`", spec.doc, operands, "<br>".join(params), fused, spec.cost,
            f"{spec.tolerance:g}", native)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gguflow.engine.ops", description=__doc__)
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the page to FILE")
    target = parser.parse_args().write
    page = table(kernels())
    if target is None:
        print(page, end="")
    else:
        target.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
