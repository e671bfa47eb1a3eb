"""Adapters by request: named as the model, or by their numbers and factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import refused
from .exchange import Exchange

if TYPE_CHECKING:
    from .manager import Loaded
    from .schema.sampling import Adapter


def factors(
    loaded: Loaded, model: str | None, given: Sequence[Adapter] | None
) -> tuple[float, ...] | None:
    """A factor for each adapter of a model; None for those that it was loaded with.

    model: as the request names it: an adapter's name asks for that one alone. given: the request's
    `lora`; those that it leaves out are not applied. Raises ApiError.
    """
    adapters = loaded.spec.adapters
    names = [name for name, _ in adapters]
    if model in names:
        if given is not None:
            raise refused("lora", f"model asks for the adapter {model[:200]!r} already")
        return tuple(factor if name == model else 0.0 for name, factor in adapters)
    if given is None:
        return None
    found = dict[int, float]()
    for n, one in enumerate(given):
        i = one.id if isinstance(one.id, int) else _index(names, one.id)
        if i >= len(names):
            raise refused(f"lora.{n}.id", f"there is no adapter {str(one.id)[:200]!r}")
        if i in found:
            raise refused(f"lora.{n}.id", "the adapter is named twice")
        found[i] = one.scale
    return tuple(found.get(i, 0.0) for i in range(len(names)))


def _index(names: list[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


async def lora_adapters(exchange: Exchange) -> None:
    """The default model's adapters and the factors they have where a request does not say."""
    manager = exchange.service.manager
    spec = manager.spec(manager.default)
    await exchange.json(
        [
            {"id": i, "name": name, "path": path, "scale": scale}
            for i, ((name, _), (path, scale)) in enumerate(
                zip(spec.adapters, spec.options.lora, strict=True)
            )
        ]
    )
