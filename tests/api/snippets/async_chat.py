"""Conversations for asyncio, computed together."""

import asyncio

import gguflow

model = gguflow.Model.load(n_ctx=256)


async def answer(question: str) -> str:
    text = ""
    messages = [{"role": "user", "content": question}]
    async for piece in model.achat(messages, max_tokens=12, seed=1):
        if piece.kind == "content":
            text += piece
    return text


async def main() -> None:
    cat, dog = await asyncio.gather(answer("Who is the cat?"), answer("Who is the dog?"))
    assert cat and dog


asyncio.run(main())
