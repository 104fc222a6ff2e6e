"""An engine in a process of its own: how it is started, watched and ended, and what it runs.

`EngineProcess` is the parent's view. `main` is what the child runs: it composes the engine's side by `launch.py`, tells
its parent what came of it, and serves. A child ends when its parent does: its standard input is a pipe that the parent
holds open. Only strings cross the wall; each side loads its own plugins. Restarts are `transport/restarts.py`'s.
"""

import contextlib
import dataclasses
import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from modulm import errors
from modulm.config import EngineConfig
from modulm.errors import ConfigError, EngineError, ModulmError
from modulm.frontend.tokenizer import Tokenizer
from modulm.launch import Serving, build_engine, build_frontend, made_of, resolve_all, resolved_for_frontend
from modulm.log import logger
from modulm.plugins.bootstrap import bootstrap
from modulm.reference.host_memory import give_back_freed
from modulm.transport.client import TICK_S
from modulm.transport.codec import Failed, FromEngine, Outputs, Ready, Resolved, decode, encode
from modulm.transport.restarts import RestartingClient
from modulm.transport.socket import SocketClient, SocketServer
from modulm.types import EngineStats, Request, StepOutput

_log = logger("engine_process")
_CHILD = """
import json, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # often sent to all of a group; the parent decides
    signal.signal(number, signal.SIG_IGN)
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from modulm.engine_process import main
main()
"""
_LAST_OUTPUTS_S = 5.0
"""How long an engine that is asked to end may take over its last step before it is killed."""
_ANSWER_S = 30.0


class _Order(msgspec.Struct, kw_only=True):
    """What a child is told first."""

    config: EngineConfig
    folder: str
    reports: bool
    log_level: int


class ChildTraceback(Exception):
    """The traceback of another process, as the cause of the error that came of it."""


class EngineProcess:
    """One engine process, from its start to its end: a `StartedEngine`.

    `submit` and `abort` from any thread, the rest from one. Whatever says by an error that the process is lost has
    given back its sockets, its folder and the process itself.

    Attributes:
        resolved, ready: What it said of itself so far.
        is_ready: Whether it can step.
        load_s: How long it took to be ready; 0 until then.
        heard_at: When it last said anything; monotonic seconds.
        report: What came with the last poll, where reports of every step were asked for.
    """

    def __init__(self, config: EngineConfig, *, reports: bool) -> None:
        self.resolved: Resolved | None = None
        self.ready: Ready | None = None
        self.is_ready = False
        self.load_s = 0.0
        self.heard_at = self._started_at = time.monotonic()
        self.report: EngineStats | None = None
        self._backlog: list[StepOutput] = []
        self._open: set[str] = set()
        self._loss: ModulmError | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="modulm-")
        with contextlib.ExitStack() as undo:
            undo.callback(self._folder.cleanup)
            order = _order(config, self._folder.name, reports=reports)
            self._client = SocketClient(Path(self._folder.name))
            undo.callback(self._client.close)
            self._process = _start_child(order)
            undo.pop_all()
        self.abort = self._client.abort

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def wait_resolved(self) -> Resolved:
        """Wait until it has made its choices. Raises what was raised over there."""
        while self.resolved is None:
            self._receive()
        return self.resolved

    def wait_ready(self) -> Ready:
        """Wait until it can step. Raises what was raised over there."""
        while self.ready is None:
            self._receive()
        return self.ready

    def submit(self, request: Request) -> None:
        """See `EngineVerbs`. Raises `EngineError` when the process is lost."""
        self._open.add(request.request_id)
        self._client.submit(request)

    def has_work(self) -> bool:
        """See `EngineVerbs`."""
        return bool(self._open or self._backlog)

    def poll(self) -> list[StepOutput]:
        """Return what it says within a moment. Raises `EngineError`, or what was raised over there, when it is lost."""
        self.report = None
        if not self._backlog:
            self._backlog, self.report = self._next_outputs()
        outputs, self._backlog = self._backlog, []
        self._open.difference_update([output.request_id for output in outputs if output.finish_reason is not None])
        return outputs

    def stats(self) -> EngineStats:
        """See `EngineVerbs`; waits for the answer, which comes between two steps."""
        self._client.ask()
        deadline = time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            outputs, report = self._next_outputs()
            self._backlog += outputs
            if report is not None:
                return report
        raise EngineError(f"The engine has not answered within {_ANSWER_S:.0f} s. Ask again, or start it anew.")

    def shutdown(self) -> None:
        """See `EngineVerbs`; returns when the process is no more. Last outputs are left for `poll`."""
        deadline = time.monotonic() + _LAST_OUTPUTS_S
        try:
            self._client.end()
            while time.monotonic() < deadline:
                self._backlog += self._next_outputs()[0]
        except ModulmError as error:  # it has ended, as it should
            _log.debug("%s", error)
        self.kill()

    def kill(self) -> None:
        """End the process whatever it does, and give everything back; may be called twice."""
        self._loss = self._loss or EngineError("The engine process has been ended. Start a new one.")
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._client.close()
        self._folder.cleanup()
        self.resolved = None  # megabytes, which the traceback of a loss would keep

    def _next_outputs(self) -> tuple[list[StepOutput], EngineStats | None]:
        message = self._receive()
        return (message.outputs, message.report) if isinstance(message, Outputs) else ([], None)

    def _receive(self) -> FromEngine | None:
        """Return what it says within a moment, and take note of it."""
        if self._loss is not None:
            raise self._loss
        try:
            message = self._client.receive(TICK_S)
            if message is None and self._process.poll() is not None:
                message = self._client.receive(TICK_S)  # what it said last may have come just now
                if message is None:
                    raise EngineError(_ending(self.pid, self._process.returncode))
            if isinstance(message, Failed):
                raise _revived(message)
        except BaseException as error:
            self._loss = error if isinstance(error, ModulmError) else None
            self.kill()
            raise
        if message is not None:
            self.heard_at = time.monotonic()
        if isinstance(message, Resolved):
            self.resolved = message
        elif isinstance(message, Ready):
            self.ready, self.is_ready, self.load_s = message, True, self.heard_at - self._started_at
        return message


def launch_process(config: EngineConfig, *, reports: bool, restarts: int) -> Serving:
    """Start an engine in a process of its own, and build its front end here while it loads.

    Raises `ConfigError`, `PluginError` or `CheckpointError`, whichever side found it; nothing keeps running then.
    """
    process = EngineProcess(config, reports=reports)
    try:
        bootstrap(config)
        resolved = process.wait_resolved()
        client = RestartingClient(process, lambda: EngineProcess(config, reports=reports), restarts=restarts)
        frontend = build_frontend(resolved, Tokenizer.from_data(resolved.tokenizer), client)
        config, model = resolved.config, resolved.model
        process.resolved = None
        del resolved  # the tokenizer has been built, and its JSON is megabytes
        give_back_freed()
        ready = process.wait_ready()
    except BaseException:
        process.kill()
        raise
    _log.info("%s is ready after %.1f s, in process %d.", config.model, process.load_s, process.pid)
    return Serving(frontend=frontend, client=client, config=config, model=model, ready=ready)


def main() -> None:
    """Be an engine process: read the order from standard input, load, serve, end."""
    order = decode(bytes.fromhex(sys.stdin.readline()), _Order)
    logging.getLogger("modulm").setLevel(order.log_level)
    threading.Thread(target=_end_with_parent, args=(order.folder,), daemon=True).start()
    server = SocketServer(Path(order.folder), reports=order.reports)
    try:
        _load_and_serve(order.config, server)
    except Exception as error:
        failed = Failed(kind=type(error).__name__, message=str(error), traceback=traceback.format_exc())
        server.say(failed)
        sys.exit(1)
    finally:
        server.close()


def _load_and_serve(config: EngineConfig, server: SocketServer) -> None:
    resolution = resolve_all(config)
    server.say(resolved_for_frontend(resolution))
    engine, worker = build_engine(resolution)
    server.say(made_of(resolution, worker))
    gc.collect()
    gc.freeze()  # what was loaded stays: later collections need not look at it
    give_back_freed()
    server.serve(engine)


def _start_child(order: bytes) -> "subprocess.Popen[bytes]":
    # What plugins print goes where logs go: standard output is the parent's.
    child = subprocess.Popen([sys.executable, "-c", _CHILD, "modulm-engine"], stdin=subprocess.PIPE, stdout=2)
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # dead already: the first poll says so
        child.stdin.write(order)
        child.stdin.flush()
    return child


def _end_with_parent(folder: str) -> None:
    """Wait for the parent's end of standard input to close, which no parent's death can prevent."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _order(config: EngineConfig, folder: str, *, reports: bool) -> bytes:
    level = logger("engine_process").getEffectiveLevel()
    order = _Order(config=portable(config), folder=folder, reports=reports, log_level=level)
    try:
        return json.dumps([str(path) for path in sys.path]).encode() + b"\n" + encode(order).hex().encode() + b"\n"
    except (OverflowError, TypeError) as error:
        raise ConfigError(
            f"An option of {config!r} cannot be sent to an engine process: {error}. Use plain values and numbers of at "
            "most 64 bits, or keep the engine in this process (in_process=True)."
        ) from error


def portable(config: EngineConfig) -> EngineConfig:
    """Return the configuration with classes named by strings. Raises `ConfigError` where one has no name to import."""
    processors = [each if isinstance(each, str) else _reference(each) for each in config.logits_processors]
    return dataclasses.replace(config, logits_processors=processors)


def _reference(cls: Any) -> str:
    module, name = getattr(cls, "__module__", None), getattr(cls, "__qualname__", "<locals>")
    if module in (None, "__main__") or "<locals>" in name:
        raise ConfigError(
            f"Logits processor {cls!r} cannot be found by an engine process: it is no class of a module that can be "
            "imported. Move it into one, or keep the engine in this process (in_process=True)."
        )
    return f"{module}:{name}"


def _revived(failed: Failed) -> ModulmError:
    """Return a child's error as the same class of ours, with its traceback as the cause."""
    kind = getattr(errors, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, ModulmError):
        error = kind(failed.message)
    else:
        error = EngineError(f"The engine process failed: {failed.kind}: {failed.message}")
    error.__cause__ = ChildTraceback(f"\n{failed.traceback}")
    return error


def _ending(pid: int, status: int) -> str:
    if status >= 0:
        return f"The engine process (pid {pid}) ended with status {status}."
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " The system does that when memory runs out." if name == "SIGKILL" else ""
    return f"The engine process (pid {pid}) was ended by {name}.{hint}"
