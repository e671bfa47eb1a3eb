"""Errors of the API, in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from gguflow.engine.constraints.error import ConstraintRefused

INVALID = "invalid_request_error"


class ApiError(Exception):
    """An answer other than 2xx. param: the field of the request that is at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code, self.kind, self.headers = code, kind, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code or HTTPStatus(self.status).name.lower(),
            }
        }

    def response(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.body(), self.status, self.headers)


def refused(param: str, message: str, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


@contextmanager
def refusing() -> Iterator[None]:
    """A constraint that cannot be obeyed becomes a 400 that names the field."""
    try:
        yield
    except ConstraintRefused as error:
        raise refused(error.field, error.reason, error.code) from None


def busy(message: str, retry_after: int) -> ApiError:
    """A 429 that says when to come again."""
    headers = {"retry-after": str(retry_after)}
    return ApiError(429, message, kind="rate_limit_error", code="queue_full", headers=headers)


def unavailable(message: str) -> ApiError:
    """A 503: the server is going down, or a model's engine has failed."""
    return ApiError(503, message, kind="server_error", code="unavailable")


class ClientGone(Exception):
    """The client hung up: nobody reads an answer."""
