"""The wall between two processes: the verbs as messages over ZeroMQ, through sockets in a folder that both can reach.

`SocketClient` is the frontend's end, `SocketServer` the engine's; a pair lives as long as one engine process. Knows
neither who started whom nor what becomes of a lost engine: see `restarts.py` and `engine_process.py`.
"""

import contextlib
import threading
import time
from pathlib import Path

from modulm.errors import ConfigError, EngineError, NotInstalled
from modulm.transport.codec import (
    Abort,
    Close,
    FromEngine,
    Outputs,
    Report,
    Submit,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from modulm.transport.inprocess import SteppedEngine
from modulm.types import FinishReason, Request, StepOutput

try:
    import zmq
except ImportError as error:
    raise NotInstalled(
        "An engine in a process of its own is reached through ZeroMQ, and pyzmq is not installed. It comes with the "
        "extra 'serve': pip install 'modulm-core[serve]'. Or keep the engine in this process (in_process=True)."
    ) from error

HEARTBEAT_S = 1.0
"""An engine with nothing else to say says so this often."""
_LAST_WORDS_S = 2.0
"""How long a process that ends waits for its last message to be taken."""


class SocketClient:
    """The frontend's end. `submit`, `abort`, `ask` and `end` from any thread, `receive` and `close` from one."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._requests = self._context.socket(zmq.PUSH)
        self._outputs = self._context.socket(zmq.PULL)
        try:
            for name, socket in (("requests", self._requests), ("outputs", self._outputs)):
                socket.set_hwm(0)  # what is refused is refused in the front end; nothing may be lost or block here
                socket.bind(f"ipc://{folder / name}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"Folder {str(folder)!r} cannot hold the sockets to an engine process: {error}. Name another folder "
                "for temporary files, with a short path, in TMPDIR."
            ) from error

    def submit(self, request: Request) -> None:
        """See `EngineVerbs`. Raises `EngineError` when the engine is gone."""
        self._send(Submit(request=request))

    def abort(self, request_ids: list[str], reason: FinishReason = "abort") -> None:
        """See `EngineVerbs`; an engine that is gone has ended all."""
        with contextlib.suppress(EngineError):
            self._send(Abort(request_ids=request_ids, reason=reason))

    def ask(self) -> None:
        """Ask for a report; it comes with one of the next messages. Raises `EngineError` as `submit` does."""
        self._send(Report())

    def end(self) -> None:
        """Ask the engine to end; its last outputs follow. Raises `EngineError` as `submit` does."""
        self._send(Close())

    def receive(self, timeout_s: float) -> FromEngine | None:
        """Return the next message, or None when none came in time."""
        if not self._outputs.poll(int(timeout_s * 1000)):
            return None
        return decode_from_engine(self._outputs.recv())

    def close(self) -> None:
        """Give the sockets back; may be called twice."""
        with self._lock:
            self._context.destroy(linger=0)

    def _send(self, message: ToEngine) -> None:
        data = encode(message)
        with self._lock:
            try:
                self._requests.send(data, zmq.DONTWAIT)
            except zmq.ZMQError as error:  # closed, or nobody at the other end
                raise EngineError(
                    "The engine process is gone: it takes no messages. Try again.", retry_after_s=1
                ) from error


class SocketServer:
    """The engine's end, which belongs to the engine's thread.

    Args:
        reports: Whether every step's message carries a report; else only when one is asked for.
    """

    def __init__(self, folder: Path, *, reports: bool) -> None:
        self._reports = reports
        self._asked = False
        self._said_at = time.monotonic()
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._outputs = self._context.socket(zmq.PUSH)
        for name, socket in (("requests", self._requests), ("outputs", self._outputs)):
            socket.set_hwm(0)
            socket.connect(f"ipc://{folder / name}")

    def say(self, message: FromEngine) -> None:
        """Send a message."""
        self._outputs.send(encode(message))
        self._said_at = time.monotonic()

    def serve(self, engine: SteppedEngine) -> None:
        """Run the engine until it is asked to end: messages are taken between steps, outputs go out once a step."""
        while self._take(engine):
            stepped = engine.has_work()
            self._tell(engine, engine.step() if stepped else [], stepped=stepped)
        engine.shutdown()
        self._tell(engine, engine.step(), stepped=True)

    def close(self) -> None:
        """Let the last message go and give the sockets back."""
        self._context.destroy(linger=int(_LAST_WORDS_S * 1000))

    def _take(self, engine: SteppedEngine) -> bool:
        """Pass on what has come, waiting for it when there is nothing to do; whether to go on."""
        timeout_s = 0.0 if engine.has_work() else HEARTBEAT_S
        while self._requests.poll(int(timeout_s * 1000)):
            timeout_s = 0.0
            match decode_to_engine(self._requests.recv()):
                case Submit(request=request):
                    engine.submit(request)
                case Abort(request_ids=request_ids, reason=reason):
                    engine.abort(request_ids, reason)
                case Report():
                    self._asked = True
                case Close():
                    return False
        return True

    def _tell(self, engine: SteppedEngine, outputs: list[StepOutput], *, stepped: bool) -> None:
        reports = self._asked or (self._reports and stepped)
        if outputs or reports or time.monotonic() - self._said_at >= HEARTBEAT_S:
            self.say(Outputs(outputs=outputs, report=engine.stats() if reports else None))
            self._asked = False
