"""Messages to bytes and back, in MessagePack, by the types of `types.py`. Knows nothing of sockets or processes."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import EngineError
from modulm.interfaces.checkpoint import TokenizerData
from modulm.types import EngineStats, FinishReason, Request, StepOutput

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()


class Submit(msgspec.Struct, kw_only=True, tag="submit"):
    """Frontend to engine: run this."""

    request: Request


class Abort(msgspec.Struct, kw_only=True, tag="abort"):
    """Frontend to engine: end these."""

    request_ids: list[str]
    reason: FinishReason = "abort"


class Report(msgspec.Struct, tag="report"):
    """Frontend to engine: say what happened, and how things stand."""


class Close(msgspec.Struct, tag="close"):
    """Frontend to engine: end everything."""


ToEngine = Submit | Abort | Report | Close
"""One stream carries them, so that they arrive in the order in which they were sent."""


class Resolved(msgspec.Struct, kw_only=True, tag="resolved"):
    """Engine to frontend, before the weights are loaded: what was chosen, as far as it must know."""

    config: EngineConfig
    model: ModelConfig
    generation_config: dict[str, Any]
    tokenizer: TokenizerData


class Ready(msgspec.Struct, kw_only=True, tag="ready"):
    """Engine to frontend, once it can step: what it is made of, and its process's plugins, as plain data."""

    explained: dict[str, Any]
    plugins: list[dict[str, Any]]
    num_kv_blocks: int | None = None


class Failed(msgspec.Struct, kw_only=True, tag="failed"):
    """Engine to frontend, before the process ends: the error's class, its message, and its traceback as text."""

    kind: str
    message: str
    traceback: str


class Outputs(msgspec.Struct, kw_only=True, tag="outputs"):
    """Engine to frontend: all that one step brought; without anything in it, a sign of life."""

    outputs: list[StepOutput] = []
    report: EngineStats | None = None


FromEngine = Resolved | Ready | Failed | Outputs


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    return _encoder.encode(message)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def decode(data: bytes, kind: type[T]) -> T:
    """Return the message of type `kind` in `data`. Raises `EngineError` when there is none."""
    decoder: msgspec.msgpack.Decoder[T] = _decoder(kind)  # type: ignore[arg-type]  # mypy: type[T] "is not hashable"
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise EngineError(
            f"{len(data)} bytes from the other side are no {kind}: {error}. Both sides must run the same version."
        ) from error


def decode_to_engine(data: bytes) -> ToEngine:
    """Return what the frontend sent. Raises `EngineError` when it is no such message."""
    return decode(data, ToEngine)  # type: ignore[arg-type]  # a union is not a type[T]


def decode_from_engine(data: bytes) -> FromEngine:
    """Return what the engine sent. Raises `EngineError` when it is no such message."""
    return decode(data, FromEngine)  # type: ignore[arg-type]  # a union is not a type[T]
