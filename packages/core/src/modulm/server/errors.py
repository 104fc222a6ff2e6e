"""Errors of ours -> HTTP status and OpenAI's error body, for responses and for events in the middle of a stream.

The client's faults name the field; faults of ours say nothing of the inside, which the log has.
"""

import math
import reprlib
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from modulm.errors import EngineError, RequestError
from modulm.log import logger
from modulm.server.schema.errors import ErrorBody, ErrorDetail

RETRY_LATER_S = 5
"""What `Retry-After` says while the engine is away and does not know for how long."""
_log = logger("server")
_INVALID = "invalid_request_error"
_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.NOT_IMPLEMENTED: "not_implemented_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "service_unavailable_error",
}


class Refused(HTTPException):
    """A request that the server itself turns down; `param` and `code` as in OpenAI's error body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param = param
        self.code = code


class GenerationFailed(EngineError):
    """The engine took the request and could not finish it."""


def refused_field(name: str, value: Any, why: str) -> Refused:
    """Return the refusal of one field's value."""
    message = f"{name}={reprlib.repr(value)} is refused: {why}. Leave it out."
    return Refused(HTTPStatus.BAD_REQUEST, message, param=name)


def described(error: Exception) -> tuple[int, ErrorDetail, dict[str, str]]:
    """Return status, description and extra headers for whatever was raised."""
    if isinstance(error, RequestError):
        return 400, ErrorDetail(message=str(error), type=_INVALID, param=error.parameter), {}
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:]) or None
        return 400, ErrorDetail(message=f"{param or 'The body'}: {first['msg']}", type=_INVALID, param=param), {}
    if isinstance(error, HTTPException):
        kind = _TYPES.get(HTTPStatus(error.status_code), _INVALID if error.status_code < 500 else "server_error")
        code, param = getattr(error, "code", None), getattr(error, "param", None)
        detail = ErrorDetail(message=str(error.detail), type=kind, param=param, code=code)
        return error.status_code, detail, dict(error.headers or {})
    if isinstance(error, EngineError) and not isinstance(error, GenerationFailed):
        kind = _TYPES[HTTPStatus.SERVICE_UNAVAILABLE]
        retry_s = math.ceil(error.retry_after_s or RETRY_LATER_S)
        return 503, ErrorDetail(message=str(error), type=kind), {"retry-after": str(retry_s)}
    message = str(error) if isinstance(error, EngineError) else "The server failed; its log says why. Try again."
    return 500, ErrorDetail(message=message, type="server_error"), {}


def error_response(error: Exception) -> Response:
    """Return the response that tells of an error."""
    status, detail, headers = described(error)
    body = b"" if status < 400 else msgspec.json.encode(ErrorBody(error=detail))
    return Response(body, status, headers, media_type="application/json")


def error_event(error: Exception) -> bytes:
    """Return the event that tells of an error in a stream that has begun."""
    return b"data: %b\n\n" % msgspec.json.encode(ErrorBody(error=described(error)[1]))


def add_handlers(app: FastAPI) -> None:
    """Make every error of every route, plugins' included, end in our body."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and type(error) is HTTPException and error.detail in _PHRASES:
            error = HTTPException(error.status_code, _explained(request, error.status_code), error.headers)
        return error_response(error)

    for kind in (RequestError, EngineError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, answer)


_PHRASES = {HTTPStatus.NOT_FOUND.phrase, HTTPStatus.METHOD_NOT_ALLOWED.phrase}


def _explained(request: Request, status: int) -> str:
    asked = f"{request.method} {request.url.path}"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{asked} is refused: the path takes other methods. The header Allow lists them."
    return f"{asked} leads nowhere: no route has this path. GET /openapi.json lists what there is."
