"""The application: which endpoint answers what, between start and end of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from . import chat, completions, embeddings, live, lora, openapi, page, props, responses, small
from .apart import start_threads
from .errors import ApiError
from .exchange import Endpoint, Exchange
from .guard import Guard
from .service import Service

POST = {
    "/v1/chat/completions": chat.chat_completions,
    "/v1/completions": completions.completions,
    "/v1/responses": responses.responses,
    "/v1/embeddings": embeddings.embeddings,
    "/tokenize": small.tokenize,
    "/detokenize": small.detokenize,
}
GET = {
    "/v1/models": small.models,
    "/v1/models/{model:path}": small.model,
    "/lora-adapters": lora.lora_adapters,
    "/props": props.props,
    "/health": small.health,
    "/metrics": small.metrics,
    "/openapi.json": openapi.document,
    "/live": live.feed,
    "/live/ops": live.ops,
    "/live/memory": live.memory,
    "/live/requests/{id}": live.request,
}


class _Answer:
    """An endpoint as ASGI."""

    def __init__(self, service: Service, path: str, endpoint: Endpoint) -> None:
        self._service, self._path, self._endpoint = service, path, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["gguflow.route"] = self._path
        exchange = Exchange(self._service, scope, receive, send)
        await exchange.run(self._endpoint)
        scope["gguflow.status"] = exchange.status


def build_app(service: Service) -> ASGIApp:
    """The server's application."""
    manager, get = service.manager, dict(GET)
    if service.config.page:
        get["/"] = page.page
    routes = [Route(path, _Answer(service, path, e), methods=["POST"]) for path, e in POST.items()]
    routes += [Route(path, _Answer(service, path, e), methods=["GET"]) for path, e in get.items()]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            start_threads()
            await manager.start()
        except Exception as error:
            service.failure = error
            raise
        yield
        await manager.close()
        if service.traces is not None:
            service.traces.close()

    app = Starlette(
        routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error}
    )
    app.router.redirect_slashes = False
    return Guard(app, service.config, service.metrics)


async def _http_error(request: Request, error: Any) -> Response:
    """Paths and methods that are none."""
    path = request.url.path[:200]
    if error.status_code == 405:
        message = f"{path} does not take {request.method}"
        return ApiError(405, message, headers=error.headers).response()
    if error.status_code == 404:
        return ApiError(404, f"there is nothing at {path}").response()
    return ApiError(error.status_code, str(error.detail)).response()
