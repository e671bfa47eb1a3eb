"""A model whose first stage is this process, and whose others are actors on a cluster."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguflow.engine.load import ModelSource
from gguflow.engine.model import Model
from gguflow.engine.options import Options

from .actors import calls_to, make_stages
from .errors import ClusterError
from .holder import stage_model
from .nodes import Places
from .sameness import program
from .work import Started, Work


def staged(
    ray: Any, source: ModelSource, options: Options, n: int, shares: tuple[float, ...],
    needs: Mapping[str, float], wait: float, patience: float,
) -> Model:  # fmt: skip
    """The model without its first stage's weights; the other stages have theirs, and end with it.

    source: of a file, or of random weights in a named shape. needs: resources of a stage. wait:
    seconds for the cluster to have them. Raises ClusterError.
    """
    more: dict[str, Any] = {"n_stages": n, "shares": shares, "patience": patience}
    if source.identity is None:
        work = Work("", options, shape=source.path, **more)
    else:
        work = Work.of(Path(source.path), options, **more)
    places = Places(ray, n - 1, needs, wait)
    try:
        actors = make_stages(places, 0, work)
        found = _started(ray, actors)
        model = stage_model(source, work.options, 0, calls_to(ray, actors, patience), n, shares)
        mine = program(b for b in model.backends.values() if b.holds)
        for s in found:
            if s.program != mine:
                raise ClusterError(
                    f"node {s.node} has {s.program}, this machine {mine}: stages need the same"
                )
    except BaseException:
        places.close()
        raise
    weakref.finalize(model, places.close)
    return model


def _started(ray: Any, actors: list[Any]) -> list[Started]:
    from ray.exceptions import RayError, RayTaskError

    try:
        found: list[Started] = ray.get([a.start.remote() for a in actors])
    except RayTaskError as e:
        raise e.cause if isinstance(e.cause, Exception) else ClusterError(str(e)) from None
    except RayError as e:
        raise ClusterError(f"a stage did not start: {str(e).splitlines()[0]}") from None
    return found
