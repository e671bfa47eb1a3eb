"""Streams for asyncio, computed together."""

import asyncio

import gguflow

model = gguflow.Model.load(n_ctx=256)


async def story(prompt: str) -> str:
    text = ""
    async for piece in model.astream(prompt, max_tokens=12, seed=1):
        text += piece
    return text


async def main() -> None:
    cat, dog = await asyncio.gather(story("The cat"), story("The dog"))
    assert cat and dog


asyncio.run(main())
