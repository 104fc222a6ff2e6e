"""One run: starts every server in turn, then loads them round by round, the others stopped. Prints progress only.

A server that cannot be had is noted with its reason, and the rest goes on.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers import children, settings, weights
from peers.environments import BUILD, Environment, InstallError, ensure
from peers.score import Record, Source
from peers.servers import commands
from peers.servers.lines import CROWDED, FIGURES, NUM_IDLE, OFFLINE, OURS, THROUGHPUT
from peers.servers.running import Server, StartError, free_port

_LOGS = BUILD / "logs"


@dataclass
class Session:
    """What is set for a run and what has come of it.

    Attributes:
        options: NAME=VALUE of modulm's `EngineConfig`.
        raw: Every result of the load, with round, engine and weights.
        reasons: Why a server gave no figures.
    """

    cores: list[int]
    num_requests: int
    timeout_s: float
    python: Path = Path(sys.executable)
    options: list[str] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)
    forms: dict[str, Path] = field(default_factory=dict)
    servers: dict[Source, Server] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    raw: list[dict[str, Any]] = field(default_factory=list)
    reasons: dict[Source, str] = field(default_factory=dict)

    def prepare(self, sources: list[Source]) -> None:
        """Install servers and make weights."""
        for source in sources:
            name, form = commands.needs(source)
            try:
                if name and name not in self.environments:
                    self.environments[name] = ensure(name)
                if form not in self.forms:
                    self.forms[form] = weights.prepare(form, self.environments.get("llama-server"))
            except InstallError as error:
                self._failed(source, str(error))

    def start(self, sources: list[Source]) -> None:
        """Start the servers one after the other, each stopped once it has answered."""
        for source in sources:
            if source in self.reasons or source in (OFFLINE, CROWDED):
                continue
            port = free_port()
            command = self._command(source, port)
            name, _ = commands.needs(source)
            variables = commands.variables(source, self.environments.get(name or ""), self.cores)
            server = Server(command, variables, port, _LOGS / f"server-{source.engine}-{source.weights}.log")
            self.servers[source] = server
            self.started[str(source)] = " ".join(command)
            try:
                server.wait(self.timeout_s)
            except StartError as error:
                del self.servers[source]
                self._failed(source, str(error))
            else:
                server.pause()
                print(f"{source} answers after {server.start_s:.1f} s", flush=True)

    def _command(self, source: Source, port: int) -> list[str]:
        name, form = commands.needs(source)
        model = self.forms[form]
        if source.engine == "modulm":
            given = [option.partition("=") for option in self.options]
            more = [f"--{name.replace('_', '-')}={value}" for name, _, value in given]
            return commands.modulm(self.python, model, port, more)
        env = self.environments[name or ""]
        if source.engine == "vllm":
            return commands.vllm(env, model, port, source.weights)
        return commands.llama(env, model, port, len(self.cores))

    def _failed(self, source: Source, reason: str) -> None:
        self.reasons[source] = reason
        print(f"not run: {source}: {reason}", flush=True)

    def round(self, number: int, sources: list[Source]) -> None:
        """Load every server once, in turn."""
        for source in sources:
            server = self.servers.get(OURS if source == CROWDED else source)
            if source == OFFLINE:
                figures = self._offline(number)
            elif server is None:
                continue
            else:
                figures = self._crowded(server, number) if source == CROWDED else self._loaded(source, server, number)
            if figures is None:
                continue
            self.raw.append({"round": number, "engine": source.engine, "weights": source.weights, **figures})
            shown = " ".join(f"{name}={figures[name]:.4g}" for name in FIGURES if name in figures)
            print(f"round {number} {source}: {shown}", flush=True)

    def _loaded(self, source: Source, server: Server, number: int) -> dict[str, Any] | None:
        """Return what the load generator says; None, with a reason noted, when a request failed."""
        server.resume()
        command = commands.load(self.python, source, server.port, self.num_requests, number)
        done = subprocess.run(command, env={**os.environ, "DO_NOT_TRACK": "1"}, capture_output=True, text=True)
        server.pause()
        result: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {"failed": "all"}
        if result["failed"]:
            words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            self._failed(source, f"{result['failed']} requests failed: {words[-1][:200]}")
            return None
        return result

    def _crowded(self, server: Server, number: int) -> dict[str, Any] | None:
        server.resume()
        with _idle(self.python, server.port, str(self.forms["q4_1"])) as still_open:
            figures = self._loaded(CROWDED, server, number)
            server.resume()
        if still_open != [NUM_IDLE]:
            self._failed(CROWDED, f"of {NUM_IDLE} idle connections, {still_open} were open at the end")
            figures = None
        server.pause()
        return figures

    def _offline(self, number: int) -> dict[str, Any] | None:
        command = [str(self.python), "-m", "peers.servers.offline", f"--model={self.forms['q4_1']}"]
        command += [f"--option={option}" for option in (f"requests={self.num_requests}", *self.options)]
        variables = settings.variables("modulm", None, self.cores)
        outcome = children.run(command, variables, _LOGS / f"round{number}-offline.log", self.timeout_s)
        if outcome.reason:
            self._failed(OFFLINE, outcome.reason)
            return None
        return {line["figure"]: line["value"] for line in outcome.figures if line["figure"] == THROUGHPUT}

    def end(self) -> None:
        """End every server."""
        for server in self.servers.values():
            server.end()

    def records(self) -> list[Record]:
        """Return the raw results as the score reads them."""
        return [
            Record(line["round"], Source(line["engine"], line["weights"]), name, line[name])
            for line in self.raw
            for name in FIGURES
            if name in line
        ]

    def public(self, text: str) -> str:
        """Return `text` without this machine's paths."""
        hidden = {str(BUILD.parents[1]): ".", sys.prefix: ".venv", str(Path.home()): "~"}
        hidden |= {str(self.python.parent.parent): ".venv"}
        hidden |= {str(path.parent): "WEIGHTS" for path in self.forms.values()}
        for path in sorted(hidden, key=len, reverse=True):
            text = text.replace(path, hidden[path])
        return text


@contextmanager
def _idle(python: Path, port: int, model: str) -> Iterator[list[int]]:
    """Hold idle connections open meanwhile; afterwards the list says how many the server has left open."""
    command = [str(python), "-m", "peers.servers.idle", "--host", commands.HOST, "--port", str(port)]
    command += ["--model", model, "--count", str(NUM_IDLE)]
    still_open: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        yield still_open
        child.stdin.close()
        still_open += [int(line) for line in child.stdout if line.strip().isdigit()]
