"""API keys: every route asks for one, plugins' too, but those that say whether the server lives.

Keys are compared by their digests, all of them, in constant time.
"""

import hashlib
import hmac
from collections.abc import Sequence
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from modulm.server.errors import Refused, error_response

OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})


class Keys:
    """ASGI middleware; names the key's number in `scope["modulm.key"]`, for limits per key."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what bears a key. Browsers' questions beforehand have none, and are answered before this (CORS)."""
        if scope["type"] not in ("http", "websocket") or _is_open(scope):
            return await self._app(scope, receive, send)
        number = self._number(scope)
        if number is not None:
            scope["modulm.key"] = number
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        message = (
            "The API key is missing or wrong. Send a key of this server in the header 'Authorization: Bearer KEY'."
        )
        headers = {"www-authenticate": "Bearer"}
        refused = Refused(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key", headers=headers)
        return await error_response(refused)(scope, receive, send)

    def _number(self, scope: Scope) -> int | None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, each) for each in self._digests]
        return matches.index(True) if scheme.lower() == b"bearer" and any(matches) else None


def _is_open(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) in OPEN_PATHS


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
