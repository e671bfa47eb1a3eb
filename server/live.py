"""What the page's second view shows: the batch as it is stepped, time by op, timelines."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from gguflow.engine.profile import Profile

from .errors import ApiError
from .exchange import Exchange
from .memory import resident
from .monitor import ops_table

if TYPE_CHECKING:
    from .manager import Loaded

EVERY = 0.25  # seconds between two looks
PROFILE_WAIT = 10.0  # seconds that a profile waits for steps


async def feed(exchange: Exchange) -> None:
    """Server-sent events, four a second: every model's numbers, its steps since the last event, the
    requests in work and those that ended last. Ends with the request's time."""
    seen: dict[str, int] = {}
    async with exchange.watch():
        await exchange.begin_events()
        end = exchange.deadline - 1.0
        while not exchange.service.ending() and asyncio.get_running_loop().time() < end:
            data = json.dumps(snapshot(exchange, seen), separators=(",", ":"))
            await exchange.event(b"data: " + data.encode() + b"\n\n")
            await asyncio.sleep(EVERY)
        await exchange.end_events()


def snapshot(exchange: Exchange, seen: dict[str, int]) -> dict[str, Any]:
    """One look. seen: by model, the steps shown already; brought up to date."""
    service = exchange.service
    return {
        "time": time.time(),
        "models": [_model(m, seen) for m in service.manager.loaded()],
        "requests": service.requests.rows(),
        "rss": resident(),
    }


def _model(m: Loaded, seen: dict[str, int]) -> dict[str, Any]:
    engine, name = m.watched, m.spec.name
    s, steps, n = engine.stats, [*engine.steps], engine.n_seen
    new = steps[-min(len(steps), n - seen.get(name, 0)) :] if n > seen.get(name, 0) else []
    seen[name] = n
    return {
        "name": name, "seqs": m.model.options.n_seqs, "ctx": m.n_ctx,
        "running": s.n_running, "waiting": s.n_waiting + m.gate.n_waiting,
        "pages": s.n_pages, "available": s.n_available, "preempted": s.n_preempted,
        "prompt": s.n_prompt, "found": s.n_found, "generated": s.n_generated, "steps": s.n_steps,
        "sequences": engine.sequences(), "new": [step.row() for step in new],
    }  # fmt: skip


def _find(exchange: Exchange) -> Loaded:
    """The model that `?model=` names, else the default one, if it is in memory."""
    query = parse_qs(exchange.scope["query_string"].decode("latin-1"))
    manager = exchange.service.manager
    name = manager.find(query.get("model", [None])[0])
    for m in manager.loaded():
        if m.spec.name == name:
            return m
    raise ApiError(404, f"model: {name!r} is not in memory", param="model", code="not_loaded")


async def ops(exchange: Exchange) -> None:
    """Time by op, by layer and by module of the next few steps, with shares of the roofline. 404
    when none comes in ten seconds."""
    loaded = _find(exchange)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Profile] = loop.create_future()

    def settle(profile: Profile) -> None:
        if not done.done():
            done.set_result(profile)

    def deliver(profile: Profile) -> None:
        loop.call_soon_threadsafe(settle, profile)

    async with exchange.watch():
        loaded.watched.watch_ops(deliver)
        try:
            profile = await asyncio.wait_for(done, PROFILE_WAIT)
        except TimeoutError:
            raise ApiError(404, "nothing ran that could be measured", code="idle") from None
        await exchange.json(await asyncio.to_thread(ops_table, profile))


async def memory(exchange: Exchange) -> None:
    """The forecast's bytes by memory space beside what is in use, and pages that are held."""
    loaded = _find(exchange)
    told = await loaded.watched.memory()
    stats = loaded.watched.stats
    pages = sum(n - stats.n_available[group] for group, n in stats.n_pages.items())
    held = told["held"] | {"pages": pages}
    await exchange.json(told | {"model": loaded.spec.name, "held": held})


async def request(exchange: Exchange) -> None:
    """A request's timeline: when each token came, in seconds after the request."""
    line = exchange.service.requests.find(exchange.scope["path_params"]["id"])
    if line is None:
        raise ApiError(404, "no such request, or too long ago")
    await exchange.json(line.row(whole=True))
