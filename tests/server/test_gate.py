"""The queue before the engine: bounded, in turns over keys, nothing lost when waiters leave."""

from __future__ import annotations

import asyncio
import random

import pytest

from gguflow.server.admission import Gate, QueueFullError


def test_places_and_queue() -> None:
    async def main() -> None:
        gate = Gate(2, 1)
        await gate.enter("a")
        await gate.enter("a")
        waiter = asyncio.create_task(gate.enter("a"))
        await asyncio.sleep(0)
        assert (gate.n_inside, gate.n_waiting) == (2, 1)
        with pytest.raises(QueueFullError):
            await gate.enter("b")
        gate.leave()
        await waiter
        assert (gate.n_inside, gate.n_waiting) == (2, 0)

    asyncio.run(main())


def test_turns_over_keys() -> None:
    """One key with many requests does not hold up another's single one."""

    async def main() -> None:
        gate, order = Gate(1, 100), list[str]()

        async def one(key: str) -> None:
            await gate.enter(key)
            order.append(key)
            await asyncio.sleep(0)
            gate.leave()

        await gate.enter("first")
        tasks = [asyncio.create_task(one("greedy")) for _ in range(10)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(one(k)) for k in ("b", "c", "b")]
        await asyncio.sleep(0)
        gate.leave()
        await asyncio.gather(*tasks)
        assert order[:5] == ["greedy", "b", "c", "greedy", "b"] and len(order) == 13
        assert (gate.n_inside, gate.n_waiting) == (0, 0)

    asyncio.run(main())


def test_waiters_that_leave() -> None:
    async def main(seed: int) -> None:
        rng = random.Random(seed)
        gate, inside, most = Gate(3, 1000), 0, 0

        async def one(key: str) -> None:
            nonlocal inside, most
            await gate.enter(key)
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(rng.random() * 1e-3)
            finally:
                inside -= 1
                gate.leave()

        tasks = [asyncio.create_task(one(str(i % 5))) for i in range(200)]
        for _ in range(60):
            await asyncio.sleep(rng.random() * 1e-3)
            rng.choice(tasks).cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(f, asyncio.CancelledError) for f in found) >= 10
        assert (gate.n_inside, gate.n_waiting, inside) == (0, 0, 0) and most <= 3
        assert not gate._lines

    for seed in range(5):
        asyncio.run(main(seed))
