"""A model in stages, all of them in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gguflow.engine.cluster.holder import Holder, stage_model
from gguflow.engine.load import open_model
from gguflow.engine.model import Model
from gguflow.engine.options import Options


class Watched:
    """Calls to a holder, counted, with everything that crosses copied as a network would."""

    def __init__(self, holder: Holder) -> None:
        self.holder, self.n_bytes, self.seen = holder, 0, []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.seen.append(name)
            found = getattr(self.holder, name)(*args)
            if name == "begin":
                self.n_bytes += sum(x.nbytes for x in args[3].values())
            if name == "run":
                values, ns = found
                self.n_bytes += sum(x.nbytes for x in args[3].values())
                return {k: x.copy() for k, x in values.items()}, ns
            return found

        return call


def pipeline(path: Path, options: Options, n: int, *own: str) -> tuple[Model, list[Watched]]:
    """The first stage's, and those that it asks. own: the others' devices, if not the first's."""
    calls = {}
    for i in range(1, n):
        mine = replace(options, devices=(own[i - 1],)) if own else options
        model = stage_model(open_model(path), mine, i, {}, n)
        model.load_weights()
        calls[i] = Watched(Holder(model))
    first = stage_model(open_model(path), options, 0, calls, n)
    first.load_weights()
    return first, [*calls.values()]
