"""The one form in which this server says no: OpenAI's."""

import msgspec


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What is wrong. `param` names the field at fault where there is one."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """Body of every response from 400 up, and the last event of a stream that failed."""

    error: ErrorDetail
