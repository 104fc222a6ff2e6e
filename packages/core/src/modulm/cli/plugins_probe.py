"""The child process in which `modulm plugins doctor` tries plugins, in forks of itself.

A plugin may hang, end its process, print, or import what others should be seen to import, so a fork is used again only
after a plugin that was well and quick, and what is not well is tried once more in a fork of its own. Hooks come first
and are called; then members of families are imported, and once one of them has needed torch, the child imports it, so
that the next ones find it there. Writes one JSON object of verdicts to standard output. Where to look next:
`plugins_doctor.py`, which starts it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from modulm.errors import PluginError
from modulm.plugins import discovery, families, hooks, loading
from modulm.plugins import records as state
from modulm.plugins.families import ENDPOINT, FAMILIES, GENERAL, HOOKS, IO_PROCESSOR, PLATFORM, STAT_LOGGER
from modulm.plugins.records import LoadRecord
from modulm.plugins.registry import transaction
from modulm.plugins.verdicts import SLOW_S, Verdict, is_well, key

_FORK = get_context("fork")
_QUICK_S = 0.05
_NEEDED = {ENDPOINT: "modulm.server.app", STAT_LOGGER: "modulm.frontend.stat_loggers"}


def main() -> None:
    """Read from standard input which plugins to try and how long each may take; see the module."""
    order = json.loads(sys.stdin.readline())
    sys.dont_write_bytecode = True  # looking changes nothing
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    wanted = [record for record in discovery.records() if key(record) in order["keys"]]
    for group in {record.group for record in wanted}:  # what they need of core is imported once, not in every fork
        with suppress(PluginError, ImportError):
            import_module(_NEEDED.get(group, "modulm.plugins.families"))
            families.check(group, "", None)
    eager = [record for record in wanted if record.group in HOOKS]
    limit_s, at_once = order["limit_s"], os.cpu_count() or 1
    verdicts = _try_all(eager, limit_s, at_once)
    slow = [record for record in eager if verdicts[key(record)].seconds > SLOW_S]
    verdicts |= _try_all(slow, limit_s, 1)  # with nothing beside them, and their files in memory
    verdicts |= _try_all([record for record in wanted if record.group in FAMILIES], limit_s, at_once)
    json.dump({name: vars(verdict) for name, verdict in verdicts.items()}, out)
    out.flush()


class _Batch:
    """Plugins that one fork tries in turn, for as long as all is well. `records` are those it has not answered for."""

    def __init__(self, records: list[LoadRecord], limit_s: float) -> None:
        self.records, self.is_fresh, self._limit_s = records, True, limit_s
        self.answers, there = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_try_in_turn, args=(records, there))
        self._process.start()
        there.close()
        self.deadline = time.monotonic() + limit_s

    def answer(self) -> Verdict:
        """Return the verdict on the first record; called when there is an answer, an end, or no more time."""
        asked = self.records[0].asked
        self.deadline = time.monotonic() + self._limit_s
        if not self.answers.poll():
            reason = f"{asked} is not loaded after {self._limit_s:g} s."
            return Verdict(state=state.BROKEN, reason=reason, seconds=self._limit_s)
        try:
            return Verdict(**self.answers.recv())
        except EOFError:
            self._process.join()
            reason = f"{asked} ends the process that loads it, with status {self._process.exitcode}."
            return Verdict(state=state.BROKEN, reason=reason)

    def end(self) -> None:
        """End the fork, whatever it does."""
        self._process.kill()
        self._process.join()
        self.answers.close()


def _try_all(records: list[LoadRecord], limit_s: float, at_once: int) -> dict[str, Verdict]:
    """Return key -> verdict."""
    waiting, verdicts = [part for part in (records[start::at_once] for start in range(at_once)) if part], {}
    running: dict[Any, _Batch] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            batch = _Batch(waiting.pop(), limit_s)
            running[batch.answers] = batch
        soonest = min(batch.deadline for batch in running.values())
        ready = wait(list(running), max(0.0, soonest - time.monotonic()))
        for answers in ready or [each for each, batch in running.items() if batch.deadline <= time.monotonic()]:
            batch = running[answers]
            record, verdict = batch.records[0], batch.answer()
            if batch.is_fresh or is_well(record, verdict):
                verdicts[key(record)] = verdict
                batch.records = batch.records[1:]
            batch.is_fresh = False
            if batch.records and _goes_on(record, verdict):
                continue
            batch.end()
            del running[answers]
            waiting += [batch.records] if batch.records else []
            if verdict.torch and record.group in FAMILIES:
                with suppress(Exception):  # where torch itself is broken, each says so
                    import_module("torch")
    return verdicts


def _goes_on(record: LoadRecord, verdict: Verdict) -> bool:
    """Whether the next plugin may be tried in the same process: this one leaves nothing behind that would matter."""
    return is_well(record, verdict) and verdict.seconds < _QUICK_S and not verdict.torch


def _try_in_turn(records: list[LoadRecord], answers: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    for record in records:
        verdict = _try(record)
        answers.send(vars(verdict))
        if not _goes_on(record, verdict):
            break
    os._exit(0)  # whatever the plugins left running


def _try(record: LoadRecord) -> Verdict:
    verdict, had_torch, metrics = Verdict(state=state.BROKEN), "torch" in sys.modules, _metrics()
    try:
        _ACTIONS.get(record.group, _import)(record, verdict)
    except (Exception, SystemExit) as error:
        known = isinstance(error, PluginError)
        record.state = state.BROKEN
        record.reason = str(error) if known else f"{record.asked} raises {type(error).__name__}: {error}."
    torch = sys.modules.get("torch")
    verdict.state, verdict.reason, verdict.registered = record.state, record.reason, record.registered
    verdict.seconds, verdict.torch = record.seconds or 0.0, torch is not None and not had_torch
    verdict.device = torch is not None and torch.cuda.is_initialized()
    verdict.metrics = [name for name in _metrics() if name not in metrics]
    return verdict


def _import(record: LoadRecord, verdict: Verdict) -> None:
    loading.checked(record, loading.load(record))


def _call(record: LoadRecord, verdict: Verdict) -> None:
    with transaction(record):
        loading.call(record)


def _call_for_class(record: LoadRecord, verdict: Verdict) -> None:
    path = loading.call(record)
    if path is None:
        record.state, record.reason = state.INACTIVE, "it says that it does not serve on this machine"
    else:
        loading.load_class(record, path)


def _build_logger(record: LoadRecord, verdict: Verdict) -> None:
    from modulm.config import EngineConfig, ModelConfig
    from modulm.frontend.stat_loggers import logged_config, make

    logger_class = loading.checked(record, loading.load(record))
    model = ModelConfig(name="doctor", hf={}, architectures=[], max_model_len=4096)
    config = logged_config(EngineConfig(model=model.name), model, 1, list)
    verdict.routes = _routes(make(logger_class, config, [0]).routes())


def _build_endpoint(record: LoadRecord, verdict: Verdict) -> None:
    from fastapi import FastAPI

    from modulm.server import app as server
    from modulm.server import endpoints

    plugin = hooks.build_endpoint(record)
    app = FastAPI(openapi_url=None)
    server.add_routes(app, ())
    core = _routes(app.routes)
    endpoints.attach(app, [plugin])
    verdict.routes = _routes(app.routes)[len(core) :]


def _routes(routes: Iterable[Any]) -> list[str]:
    from modulm.server.endpoints import routes_of

    return [f"{method} {path}" for method, path in routes_of(routes)]


def _metrics() -> list[str]:
    """Return the names in prometheus_client's default registry, which all share, but for the library's own."""
    client = sys.modules.get("prometheus_client")
    families = client.REGISTRY.collect() if client is not None else ()
    return [family.name for family in families if not family.name.startswith(("python_", "process_"))]


_ACTIONS: dict[str, Callable[[LoadRecord, Verdict], None]] = {
    GENERAL: _call,
    PLATFORM: _call_for_class,
    IO_PROCESSOR: _call_for_class,
    STAT_LOGGER: _build_logger,
    ENDPOINT: _build_endpoint,
}
"""What is done with a plugin beyond importing it: what the process that loads it would do."""
