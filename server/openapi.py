"""/openapi.json: the API as its own classes describe it."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from gguflow import __version__

from .exchange import Exchange
from .schema.base import Body
from .schema.chat import ChatBody, CompletionBody
from .schema.other import DetokenizeBody, EmbeddingsBody, TokenizeBody
from .schema.responses import ResponsesBody

_BODIES: dict[str, tuple[type[Body], str]] = {
    "/v1/chat/completions": (ChatBody, "Answer a conversation"),
    "/v1/completions": (CompletionBody, "Continue texts"),
    "/v1/responses": (ResponsesBody, "Answer a conversation, under the newer names"),
    "/v1/embeddings": (EmbeddingsBody, "A vector for every text"),
    "/tokenize": (TokenizeBody, "Text or a conversation to token ids"),
    "/detokenize": (DetokenizeBody, "Token ids to text"),
}
_STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_READ = {
    "/v1/models": ("The models", "application/json"),
    "/props": ("The default model's sizes, template and settings", "application/json"),
    "/lora-adapters": ("Its adapters", "application/json"),
    "/health": ("Whether requests are taken", "application/json"),
    "/metrics": ("Prometheus metrics", "text/plain"),
}
_REFUSALS = {
    "400": "A field that cannot be obeyed, named in `error.param`",
    "401": "No valid API key",
    "403": "A page of another site",
    "404": "No such model",
    "408": "It took too long",
    "413": "The body is too large",
    "415": "Not JSON",
    "421": "Not this server's name",
    "429": "The queue is full; Retry-After says when to come again",
    "503": "The server is going down, or the model's engine has failed",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


async def document(exchange: Exchange) -> None:
    """The OpenAPI document."""
    await exchange.json(openapi())


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    bodies = list(dict.fromkeys(body for body, _ in _BODIES.values()))
    _, schemas = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    refusals = {code: {"description": why, "content": error} for code, why in _REFUSALS.items()}
    any_json = {"application/json": {"schema": {"type": "object"}}}
    paths: dict[str, Any] = {}
    for path, (body, summary) in _BODIES.items():
        content: dict[str, Any] = dict(any_json)
        if path in _STREAMED:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        schema = {"$ref": f"#/components/schemas/{body.__name__}"}
        paths[path] = {
            "post": {
                "summary": summary,
                "requestBody": {
                    "required": True, "content": {"application/json": {"schema": schema}}
                },
                "responses": {"200": {"description": "The answer", "content": content}, **refusals},
            }
        }  # fmt: skip
    for path, (summary, kind) in _READ.items():
        whole = {"description": summary, "content": {kind: {"schema": {}}}}
        paths[path] = {"get": {"summary": summary, "responses": {"200": whole, **refusals}}}
    paths["/v1/models/{model}"] = {
        "get": {
            "summary": "One model",
            "parameters": [
                {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            "responses": {
                "200": {"description": "The model", "content": any_json}, **refusals,
            },
        }
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "gguflow", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }
