"""`gguflow bench --serve URL --soak SECONDS`: the same requests over and over, by many clients.

Every request is asked alone first; under load each has to get that text again. Of a server of this
project, the memory it takes is watched too: what it grows by after the first minute is a leak, and
so are threads, descriptors and pages of the KV cache that it holds more of in the end than before.
"""

from __future__ import annotations

import asyncio
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gguflow.engine.dataclass import dataclass, field

from .bench_http import Endpoint, HttpError
from .errors import CHECK_FAILED, OK
from .load import note
from .stream import write

N_REQUESTS = 64  # that are different
WARM = 60.0  # seconds, or a quarter of the time
GROWTH = 32 << 20  # bytes that caches may still take after that
PAUSE = 0.5  # seconds between two looks at the memory
HELPERS = 32  # threads that asyncio starts when they are first needed, at the most
QUIET = 20  # looks until a server that nobody asks has put everything away


@dataclass
class Soak:
    """What came of it. other: texts that were not those alone. memory: (seconds, bytes). before,
    after: what the server held with nobody there, by name."""

    n_requests: int = 0
    n_tokens: int = 0
    n_other: int = 0
    n_busy: int = 0  # 429: a queue that is full is none of the server's faults
    errors: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> list[str]:
        """The names of what it holds more of than before."""
        spare = {"threads": HELPERS}
        grown = ((k, self.after.get(k, n) - n) for k, n in self.before.items())
        return [name for name, n in grown if n > spare.get(name, 0)]

    def grown(self, seconds: float) -> int:
        """Bytes that the memory grew by after the first minute, or quarter."""
        warm = min(WARM, seconds / 4)
        before = [n for t, n in self.memory if t <= warm]
        after = [n for t, n in self.memory if t > warm]
        return max(0, max(after) - max(before)) if before and after else 0


def bodies(
    model: str, prompts: Sequence[str], n_gen: int, seed: int = 0
) -> list[dict[str, Any]]:  # fmt: skip
    """Requests of all kinds: greedy and drawn, short and long, with texts that end them."""
    rng, out = random.Random(seed), []
    for i, prompt in enumerate(prompts):
        body = {"model": model, "prompt": prompt, "max_tokens": rng.randint(1, max(1, 2 * n_gen))}
        if i % 2:
            body |= {"temperature": rng.choice([0.5, 0.9, 1.5]), "seed": i}
            body |= rng.choice([{}, {"top_p": 0.8}, {"presence_penalty": 0.5}])
        else:
            body |= {"temperature": 0.0}
        if i % 5 == 1:
            body |= {"stop": [rng.choice([".", " the", "\n", "said"])]}
        if i % 7 == 3:
            body |= {"n": 2}
        out.append(body)
    return out


async def soak(
    endpoint: Endpoint, asked: Sequence[dict[str, Any]], n_clients: int, seconds: float
) -> Soak:
    """Ask for so long, by so many clients. Raises HttpError for one that fails alone."""
    alone = []
    for body in asked:
        got = await endpoint.complete(body)
        if got.status != 200 or got.error:
            raise HttpError(got.error or f"status {got.status}")
        alone.append(got.texts)
    out = Soak(before=await _held(endpoint, {}))
    began = time.monotonic()
    end = began + seconds

    async def client(k: int) -> None:
        rng = random.Random(k)
        while time.monotonic() < end:
            i = rng.randrange(len(asked))
            got = await endpoint.complete(asked[i])
            if got.status == 429:
                out.n_busy += 1
                await asyncio.sleep(0.1)
            elif got.status != 200 or got.error:
                out.errors[got.error or str(got.status)] += 1
            else:
                out.n_requests += 1
                out.n_tokens += got.n_generated
                out.n_other += got.texts != alone[i]

    async def watch() -> None:
        while time.monotonic() < end:
            try:
                seen = await endpoint.get("/live/memory")
            except (HttpError, OSError):
                return  # not a server of this project
            passed = time.monotonic() - began
            out.memory.append((passed, int(seen["rss"])))
            if passed <= min(WARM, seconds / 4):  # helpers are started when they are needed first
                n = seen.get("held", {}).get("threads", 0)
                out.before["threads"] = max(out.before.get("threads", 0), n)
            await asyncio.sleep(PAUSE)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for k in range(n_clients):
            group.create_task(client(k))
    out.after = await _held(endpoint, out.before)
    return out


async def _held(endpoint: Endpoint, least: dict[str, int]) -> dict[str, int]:
    """What a server of this project holds with nobody there: once it is no more than `least`, or
    after a while."""
    held: dict[str, int] = {}
    for _ in range(QUIET):
        await asyncio.sleep(PAUSE)
        try:
            held = (await endpoint.get("/live/memory")).get("held", {})
        except (HttpError, OSError):
            return {}  # not a server of this project
        if all(held.get(name, n) <= n for name, n in least.items()):
            break
    return held


async def run(
    endpoint: Endpoint, model: str, prompts: Sequence[str], n_gen: int, args: Namespace
) -> int:
    """Every number of clients, a row each. The exit code."""
    code, head = OK, ("clients", "seconds", "requests", "429", "t/s", "other texts", "errors",
                      "MiB at first", "MiB grown", "threads", "files", "pages")  # fmt: skip
    write("| " + " | ".join(head) + " |\n")
    write("|" + "|".join("-" * (len(n) + 1) + ":" for n in head) + "|\n")
    for n_clients in args.clients or [256]:
        got = await soak(endpoint, bodies(model, prompts, n_gen), n_clients, args.soak)
        grown = got.grown(args.soak)
        first = got.memory[0][1] if got.memory else 0
        cells = (n_clients, f"{args.soak:g}", got.n_requests, got.n_busy,
                 f"{got.n_tokens / args.soak:.0f}", got.n_other, sum(got.errors.values()),
                 f"{first / 2**20:.0f}", f"{grown / 2**20:.1f}",
                 *(f"{got.before.get(name, 0)} {got.after.get(name, 0)}"
                   for name in ("threads", "descriptors", "pages")))  # fmt: skip
        write("| " + " | ".join(map(str, cells)) + " |\n")
        for what, n in got.errors.most_common(5):
            note(f"bench: {n} x {what}")
        for name in got.kept:
            note(f"bench: {name}: {got.before[name]} before, {got.after[name]} in the end")
        if got.n_other or got.errors or grown > GROWTH or got.kept or not got.n_requests:
            code = CHECK_FAILED
    return code
