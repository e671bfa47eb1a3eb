"""The short endpoints: models, tokens, health, metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from . import prompting
from .errors import refused, unavailable
from .exchange import Exchange
from .logprobs import token_bytes
from .manager import ModelManager
from .schema.base import parse, unknown_fields
from .schema.other import DetokenizeBody, TokenizeBody


async def health(exchange: Exchange) -> None:
    """Whether requests are taken. Not where a model's device is lost: what watches over the server
    has to start it anew, since a process does not get a GPU back."""
    manager = exchange.service.manager
    if exchange.service.ending() or manager.closing:
        raise unavailable("the server is going down")
    if lost := manager.lost():
        raise unavailable(f"{', '.join(lost)} cannot be loaded again; the log says why")
    await exchange.json({"status": "ok"})


async def metrics(exchange: Exchange) -> None:
    """Prometheus' text form."""
    text = exchange.service.metrics.text()
    await exchange.document(text, "text/plain; version=0.0.4; charset=utf-8")


async def models(exchange: Exchange) -> None:
    """The models there are."""
    manager = exchange.service.manager
    listed = [_model(manager, name) for name in [*manager.names, *manager.adapters]]
    await exchange.json({"object": "list", "data": listed})


async def model(exchange: Exchange) -> None:
    """One of them."""
    manager = exchange.service.manager
    name = manager.shown(exchange.scope["path_params"]["model"] or "/")
    await exchange.json(_model(manager, name))


def _model(manager: ModelManager, name: str) -> dict[str, Any]:
    """A model, or an adapter, which has a parent."""
    base = manager.find(name)
    loaded = next((m for m in manager.loaded() if m.spec.name == base), None)
    out: dict[str, Any] = {
        "id": name, "object": "model", "created": manager.created(base), "owned_by": "gguflow",
        "loaded": loaded is not None, **({"parent": base} if base != name else {}),
    }  # fmt: skip
    if loaded is not None:
        out |= {"n_ctx": loaded.n_ctx, "n_seqs": loaded.model.options.n_seqs,
                "n_vocab": loaded.model.hp.n_vocab, "n_embd": loaded.model.hp.n_embd,
                "bytes": loaded.nbytes}  # fmt: skip
    return out


async def tokenize(exchange: Exchange) -> None:
    """Text, or a conversation, to token ids."""
    body = parse(TokenizeBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    given = [f for f in ("content", "prompt", "messages") if getattr(body, f) is not None]
    if len(given) != 1:
        raise refused(given[1] if given else "content", "expected content, prompt or messages")
    if body.add_special is not None and body.add_special_tokens is not None:
        raise refused("add_special", "add_special_tokens says the same: give one")
    async with exchange.service.using(exchange, body.model, "tokenize") as (loaded, line):
        text = body.content if body.content is not None else body.prompt

        def ids_of() -> list[int]:
            if body.messages is not None:
                return prompting.chat_ids(
                    loaded, body.messages, variables=body.chat_template_kwargs,
                    add_generation_prompt=body.add_generation_prompt is not False,
                )[0]  # fmt: skip
            # llama-server adds no BOS unless asked, vLLM does unless told not to.
            special = body.add_special if body.content is not None else body.add_special_tokens
            default = body.content is None
            ids: list[int] = loaded.tokenizer.encode(
                text or "",
                add_special=default if special is None else special,
                parse_special=bool(body.parse_special),
            )
            return ids

        ids = await asyncio.to_thread(ids_of)
        line.n_prompt = len(ids)
        tokens: list[Any] = [*ids]
        if body.with_pieces:
            tokens = [{"id": i, "piece": _piece(loaded.tokenizer, i)} for i in ids]
        await exchange.json({"tokens": tokens, "count": len(ids), "max_model_len": loaded.n_ctx})


def _piece(tokenizer: Any, id: int) -> str | list[int]:
    """A token's text, or its bytes where they are none."""
    data = token_bytes(tokenizer, id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]


async def detokenize(exchange: Exchange) -> None:
    """Token ids to text."""
    body = parse(DetokenizeBody, await exchange.body())
    exchange.warnings += unknown_fields(body)
    async with exchange.service.using(exchange, body.model, "detokenize") as (loaded, line):
        n_vocab = loaded.tokenizer.n_vocab
        for i, id in enumerate(body.tokens):
            if id >= n_vocab:
                raise refused(f"tokens.{i}", f"{id} is outside the vocabulary of {n_vocab}")
        line.n_prompt = len(body.tokens)
        text = await asyncio.to_thread(loaded.tokenizer.decode, body.tokens)
        await exchange.json({"content": text, "prompt": text})
