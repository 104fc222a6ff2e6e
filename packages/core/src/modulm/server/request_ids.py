"""Request ids: what a client calls its request, in answers and in the header X-Request-Id. Labels only."""

import re
import uuid

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"x-request-id"
_UNSAFE = re.compile(r"[^\x21-\x7e]")
_LONGEST = 200


def reply_id(request: Request, asked: str | None, prefix: str) -> str:
    """Return the answer's id: from the header, the body, or a fresh one."""
    return prefix + _label(request.headers.get("x-request-id") or asked)


def _label(given: str | None) -> str:
    return _UNSAFE.sub("_", given[:_LONGEST]) if given else uuid.uuid4().hex


class RequestIds:
    """ASGI middleware: every response says X-Request-Id, the client's own or a fresh one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, adding the header to what comes back."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
        header = (_HEADER, _label(given.decode("latin-1")).encode())

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        return await self._app(scope, receive, labelled)
