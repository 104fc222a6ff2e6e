"""uvicorn's HTTP/1.1 protocol, with a limit on a request's head, our error body for what is no HTTP, one timer less.

Knows bytes of one connection; no route.
"""

from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from modulm.server.errors import Refused, described
from modulm.server.schema.errors import ErrorBody

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = True
        self._num_head_bytes = 0
        self._answered: RequestResponseCycle | None = None

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_in_head, self._num_head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._is_in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; a head that does not end is answered with 431."""
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"The request's headers are longer than {MAX_HEAD_BYTES:,} bytes. Send less.")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; uvicorn lets the keep-alive timer hold one that was reset.

        Of several requests that were sent at once it tells only the last one; the one that is answered must know.
        """
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._unset_keepalive_if_required()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP (called by uvicorn)."""
        self._refuse(400, f"{msg} Send HTTP/1.1.")

    def _refuse(self, status: int, message: str) -> None:
        body = msgspec.json.encode(ErrorBody(error=described(Refused(status, message))[1]))
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
