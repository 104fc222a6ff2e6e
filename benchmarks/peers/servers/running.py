"""A server as a process: started, waited for, stopped while others are measured, ended. Knows no engine by name."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from peers.children import descendants

_POLL_S = 0.2
_ENDS_S = 10.0


class StartError(Exception):
    """A server does not answer; the text is its reason."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server and all its processes, in a process group of its own.

    Attributes:
        start_s: From the start to the first answer.
    """

    def __init__(self, command: list[str], variables: dict[str, str], port: int, log: Path) -> None:
        self.port = port
        self.start_s = 0.0
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """Of the process that was started; `descendants` finds the others."""
        return self._process.pid

    def wait(self, timeout_s: float) -> None:
        """Return when it has answered a request. Raises `StartError`, with its last words, when it does not."""
        started = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - started > timeout_s:
                self.end()
                lines = self._log.read_text(errors="replace").split("\n")
                raise StartError(f"does not answer: {next((line for line in lines[::-1] if line.strip()), '')[:200]}")
            time.sleep(_POLL_S)
        self.start_s = time.monotonic() - started

    def _answers(self) -> bool:
        base = f"http://127.0.0.1:{self.port}"
        try:
            with urllib.request.urlopen(f"{base}/v1/models", timeout=60) as answer:
                model = json.load(answer)["data"][0]["id"]
            body = json.dumps({"model": model, "prompt": [1000, 2000], "max_tokens": 1}).encode()
            asked = urllib.request.Request(f"{base}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return bool(json.load(answer)["choices"])
        except (OSError, ValueError, LookupError):
            return False

    def pause(self) -> None:
        """Let it take no processor time, however its threads wait."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End it and all that it started."""
        family = descendants(self.pid)
        self._signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in family[1:]:
            _send(pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            for pid in descendants(self.pid):
                _send(pid, number)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
