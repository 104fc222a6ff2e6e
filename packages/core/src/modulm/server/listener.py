"""Serving the application: sockets, uvicorn on uvloop, and the way down.

The first SIGTERM or SIGINT closes the socket and lets requests finish for `shutdown_timeout`; then they are aborted,
and streams end with an error event. A second signal ends at once.
"""

import asyncio
import errno
import gc
import os
import socket
import ssl
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from modulm.errors import ConfigError
from modulm.log import logger
from modulm.server.options import ServerOptions
from modulm.server.protocol import Protocol

if TYPE_CHECKING:
    from modulm.async_llm import AsyncLLM

_log = logger("server")
_LAST_WRITES_S = 2.0
_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections (httpx: 5 s, load balancers: 60 s), so that they are the ones to close."""


def bound_socket(options: ServerOptions) -> socket.socket:
    """Return the socket to serve on, bound and not yet listening, so that a taken port is known before weights load."""
    asked = options.uds or f"{options.host}:{options.port}"
    try:
        if options.uds:
            if Path(options.uds).is_socket():
                _unlink_left_behind(options.uds)
            bound = socket.socket(socket.AF_UNIX)
            bound.bind(options.uds)
            return bound
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((options.host, options.port))
        return bound
    except OSError as error:
        raise ConfigError(f"{asked} cannot be listened on: {error}. Choose another --host, --port or --uds.") from error


def _unlink_left_behind(path: str) -> None:
    """Remove the socket of a server that is no more. Raises `OSError` when somebody listens there."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def serve(app: FastAPI, llm: "AsyncLLM", options: ServerOptions, bound: socket.socket) -> None:
    """Serve until a signal comes; returns when every connection is closed."""
    where = options.uds or ":".join(map(str, bound.getsockname()[:2]))
    if not options.api_key and not options.uds and options.host in ("0.0.0.0", "::"):
        _log.warning("Anyone who reaches this machine may use the server: it has no --api-key, and --host is open.")
    _log.info("Serving %s on %s.", app.state.serving.model_name, where)
    gc.collect()
    gc.freeze()  # what was loaded stays: a collection would look at it for tens of milliseconds, and streams wait
    try:
        Listener(uvicorn_config(app, options), llm, options.shutdown_timeout).run(sockets=[bound])
    finally:
        if options.uds:
            Path(options.uds).unlink(missing_ok=True)


def uvicorn_config(app: FastAPI, options: ServerOptions) -> uvicorn.Config:
    """Return uvicorn's configuration, files of TLS and logging read. Raises `ConfigError`."""
    tls: dict[str, Any] = {}
    if options.ssl_certfile:
        tls = {
            "ssl_keyfile": options.ssl_keyfile,
            "ssl_certfile": options.ssl_certfile,
            "ssl_ca_certs": options.ssl_ca_certs,
            "ssl_cert_reqs": options.ssl_cert_reqs,
            "ssl_ciphers": options.ssl_ciphers or "TLSv1",
        }
    try:
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=Protocol,
            root_path=options.root_path,
            log_config=options.log_config or uvicorn.config.LOGGING_CONFIG,
            log_level=options.uvicorn_log_level,
            access_log=not options.disable_uvicorn_access_log,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(_LAST_WRITES_S),
            **tls,
        )
        config.load()
    except (OSError, ssl.SSLError, KeyError, ValueError) as error:
        raise ConfigError(f"The options of TLS or of logging cannot be used: {error}. Correct the files.") from error
    return config


class Listener(uvicorn.Server):
    """uvicorn, with a drain of the engine before connections are closed."""

    def __init__(self, config: uvicorn.Config, llm: "AsyncLLM", shutdown_timeout_s: float) -> None:
        super().__init__(config)
        self._llm = llm
        self._shutdown_timeout_s = shutdown_timeout_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: the first one drains, the second ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, drain the engine, then close what is left."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        _log.info("Shutting down: %d connections have %g s left.", *self._left())
        draining = asyncio.create_task(self._llm.drain(self._shutdown_timeout_s))
        while not draining.done() and not self.force_exit:
            await asyncio.wait({draining}, timeout=0.05)
        draining.cancel()
        await super().shutdown(sockets)

    def _left(self) -> tuple[int, float]:
        return len(self.server_state.connections), self._shutdown_timeout_s
