"""/v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gguflow.engine.serving.aio import EngineBusyError, EngineClosedError
from gguflow.engine.serving.request import EmbedRequest

from .admission import QueueFullError
from .errors import ApiError, busy, refused, unavailable
from .exchange import Exchange
from .lora import factors
from .prompting import check_ids, check_size
from .schema.base import parse, unknown_fields
from .schema.other import EmbeddingsBody

if TYPE_CHECKING:
    from .manager import Loaded


async def embeddings(exchange: Exchange) -> None:
    """A vector for every text."""
    body = parse(EmbeddingsBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    if body.user is not None:
        exchange.warnings.append("user")
    async with exchange.service.using(exchange, body.model, "embedding") as (loaded, line):
        n_embd = loaded.model.hp.n_embd
        if body.dimensions not in (None, n_embd):
            raise refused("dimensions", f"this model's vectors have {n_embd}")
        texts = await asyncio.to_thread(_ids, loaded, body)
        most = exchange.service.config.max_choices
        if len(texts) > most:
            raise refused("input", f"at most {most} texts to a request")
        line.n_prompt = sum(map(len, texts))
        pooling = body.pooling or "mean"
        lora = factors(loaded, body.model, None)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_embed(exchange, loaded, EmbedRequest(ids, pooling, lora)))
                    for ids in texts
                ]
        except ExceptionGroup as errors:  # of which any one is the answer
            raise errors.exceptions[0] from None
        vectors = [t.result() for t in tasks]
        if body.normalize is not False:
            vectors = [v / max(float(np.linalg.norm(v)), 1e-12) for v in vectors]
        as_text = body.encoding_format == "base64"
        await exchange.json(
            {
                "object": "list", "model": exchange.service.manager.shown(body.model),
                "data": [
                    {"object": "embedding", "index": i, "embedding": _written(v, as_text)}
                    for i, v in enumerate(vectors)
                ],
                "usage": {"prompt_tokens": line.n_prompt, "total_tokens": line.n_prompt},
            }
        )  # fmt: skip
        line.finish = "embedding"


def _ids(loaded: Loaded, body: EmbeddingsBody) -> list[Sequence[int]]:
    given: Any = body.input
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise refused("input", "no texts")
    out: list[Sequence[int]] = []
    for i, text in enumerate(given):
        field = "input" if len(given) == 1 else f"input.{i}"
        ids = text
        if isinstance(text, str):
            check_size(loaded, len(text), field)
            ids = loaded.tokenizer.encode(text)
        check_ids(loaded, ids, field)
        out.append(ids)
    return out


async def _embed(exchange: Exchange, loaded: Loaded, request: EmbedRequest) -> np.ndarray:
    """One text's vector, f32 [n_embd]. Raises ApiError."""
    service = exchange.service
    try:
        await loaded.gate.enter(exchange.key)
    except QueueFullError as error:
        service.metrics.rejected.labels(loaded.spec.name).inc()
        raise busy(str(error), service.retry_after(loaded)) from None
    try:
        async for token in loaded.engine.generate(request):
            if token.embedding is None or not np.isfinite(token.embedding).all():
                raise ApiError(500, "the model's values are not finite", kind="server_error")
            return np.asarray(token.embedding, np.float32)
        raise ApiError(500, "the engine gave no vector", kind="server_error")
    except EngineBusyError as error:
        raise busy(str(error), service.retry_after(loaded)) from None
    except EngineClosedError as error:
        raise unavailable(str(error)) from None
    finally:
        loaded.gate.leave()


def _written(vector: np.ndarray, as_text: bool) -> list[float] | str:
    if as_text:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]
