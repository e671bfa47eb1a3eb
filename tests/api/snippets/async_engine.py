"""The same for asyncio."""

import asyncio

import gguflow

model = gguflow.Model.load(n_ctx=256)


async def main() -> None:
    async with gguflow.AsyncEngine(gguflow.Engine(model, n_seqs=2)) as engine:
        request = gguflow.Request(model.tokenizer.encode("The cat"), max_tokens=6)
        async for token in engine.generate(request):
            print(token.id, token.finish)


asyncio.run(main())
