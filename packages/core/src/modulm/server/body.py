"""Bytes of a request -> a checked struct, or a refusal that names the field. Bounds sizes; knows no route.

JSON is read strictly: UTF-8, no NaN, no half surrogate pairs, no number as text.
"""

import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from modulm.errors import did_you_mean
from modulm.log import logger
from modulm.server.errors import Refused, error_response, refused_field
from modulm.server.schema.ignored import HARMLESS, REFUSED

T = TypeVar("T", bound=msgspec.Struct)
_log = logger("server")
_PLACE = re.compile(r"\$\.?(.*)`$")


class BodyLimit:
    """ASGI middleware: bodies above `max_bytes` are answered with 413, announced or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(announced) > self._max_bytes:  # the parser has let only digits through
            return await error_response(self._too_large())(scope, receive, send)
        count = 0

        async def counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self._max_bytes:
                raise self._too_large()
            return message

        return await self._app(scope, counted, send)

    def _too_large(self) -> Refused:
        why = f"The body is larger than {self._max_bytes:,} bytes. Send less, or start with a larger --max-body-bytes."
        return Refused(413, why, code="body_too_large")


async def read_body(request: Request, kind: type[T]) -> T:
    """Read and check the body. Raises `Refused`."""
    raw = await request.body()
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        _check_fields(fields, kind.__struct_fields__)
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except msgspec.DecodeError as error:
        message = f"The body is not JSON in UTF-8: {error}. NaN, infinities and half surrogate pairs are none either."
        raise Refused(400, message, code="invalid_json") from error
    except RecursionError as error:
        raise Refused(400, "The body is nested too deeply to be read. Send less depth.", code="invalid_json") from error


def _invalid(message: str) -> Refused:
    """The library says "Expected `int`, got `str` - at `$.max_tokens`", or names the missing field."""
    why, _, place = message.partition(" - at ")
    found = _PLACE.search(place)
    param = (found[1] or None) if found else None
    missing = re.search(r"missing required field `(.+?)`", why)
    param = missing[1] if missing else param
    field = re.split(r"[.\[]", param)[0] if param else None
    what = f"{param} is refused" if param else "The body is refused"
    return Refused(400, f"{what}: {why}. GET /openapi.json says what each field takes.", param=field)


def _check_fields(fields: dict[str, msgspec.Raw], known: Iterable[str]) -> None:
    """Refuse wishes that nothing would honour, and names that are one slip away from a known one."""
    unknown = fields.keys() - set(known) - HARMLESS
    for name in sorted(unknown):
        if name in REFUSED:
            value = msgspec.json.decode(fields[name])
            nothing, why = REFUSED[name]
            if value is not None and value not in nothing:
                raise refused_field(name, value, why)
        elif hint := did_you_mean(name, known, cutoff=0.9):
            raise Refused(400, f"{name!r} is unknown and would be passed over.{hint}", param=name)
        else:
            _log.debug("Field %.80r is unknown and passed over.", name)
