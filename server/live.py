"""What the page's second view shows: the batch as it is stepped, time by op, timelines."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from gguflow.engine.profile import Profile

from .errors import ApiError
from .exchange import Exchange
from .monitor import ops_table

if TYPE_CHECKING:
    from .manager import Loaded

EVERY = 0.25  # seconds between two looks
PROFILE_WAIT = 10.0  # seconds that a profile waits for steps
_PAGE_BYTES = 4096


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
        "rss": _resident(),
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
    """The forecast's bytes by memory space beside what is in use."""
    loaded = _find(exchange)
    plan = loaded.model.plan(loaded.model.buckets.largest)
    spaces = {}
    for space, b in plan.bytes_by_space().items():
        spaces[space] = {
            "weights": b.weights, "cache": b.states, "inputs": b.inputs, "results": b.results,
            "copies": b.copies, "arena": b.arena, "scratch": b.scratch, "total": b.total,
        }  # fmt: skip
    used = {
        backend.space: [*backend.memory.room()]
        for backend in loaded.model.backends.values()
        if backend.memory is not None
    }
    repacked = loaded.model.repacked_bytes()
    await exchange.json({"model": loaded.spec.name, "forecast": spaces, "room": used,
                         "rss": _resident(), "repacked": repacked,
                         "held": _held(loaded)})  # fmt: skip


async def request(exchange: Exchange) -> None:
    """A request's timeline: when each token came, in seconds after the request."""
    line = exchange.service.requests.find(exchange.scope["path_params"]["id"])
    if line is None:
        raise ApiError(404, "no such request, or too long ago")
    await exchange.json(line.row(whole=True))


def _held(loaded: Loaded) -> dict[str, int]:
    """What the process has that comes back: threads and descriptors, where the system says, pages
    of the KV cache that sequences hold."""
    held = {}
    for name, place in (("threads", "task"), ("descriptors", "fd")):
        with suppress(OSError):
            held[name] = len(os.listdir(f"/proc/self/{place}"))
    stats = loaded.watched.stats
    held["pages"] = sum(n - stats.n_available[group] for group, n in stats.n_pages.items())
    return held


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
