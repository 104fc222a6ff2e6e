"""The child process in which `modulm plugins doctor` tries plugins, each in a fork of its own.

A plugin may hang, end its process, print, or import what others should be seen to import: a fork keeps all that to
itself, and costs a millisecond where the child is small. Hooks come first and are called, several at a time; then
members of families are imported, and once one of them has needed torch, the child imports it, so that the next ones
find it there.
Writes one JSON object of verdicts to standard output. Where to look next: `plugins_doctor.py`, which starts it.
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
from modulm.plugins.verdicts import SLOW_S, Verdict, key

_FORK = get_context("fork")
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
    verdicts = _try_all(eager, order["limit_s"], os.cpu_count() or 1)
    slow = [record for record in eager if verdicts[key(record)].seconds > SLOW_S]
    verdicts |= _try_all(slow, order["limit_s"], 1)  # by itself, and with its files in memory
    verdicts |= _try_all(
        [record for record in wanted if record.group in FAMILIES], order["limit_s"], os.cpu_count() or 1
    )
    json.dump({name: vars(verdict) for name, verdict in verdicts.items()}, out)
    out.flush()


def _try_all(records: Iterable[LoadRecord], limit_s: float, at_once: int) -> dict[str, Verdict]:
    """Return key -> verdict."""
    waiting, verdicts = list(records)[::-1], {}
    running: dict[Any, tuple[LoadRecord, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            record = waiting.pop()
            here, process = _start(record)
            running[here] = (record, process, time.monotonic() + limit_s)
        soonest = min(deadline for _, _, deadline in running.values())
        ready = wait(list(running), max(0.0, soonest - time.monotonic()))
        for here in ready or [each for each, (_, _, deadline) in running.items() if deadline <= time.monotonic()]:
            record, process, _ = running.pop(here)
            verdicts[key(record)] = _answer(here, record, process, limit_s)
            if verdicts[key(record)].torch and record.group in FAMILIES:
                import_module("torch")
    return verdicts


def _start(record: LoadRecord) -> tuple[Any, Any]:
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_child, args=(record, there))
    process.start()
    there.close()
    return here, process


def _answer(here: Any, record: LoadRecord, process: Any, limit_s: float) -> Verdict:
    try:
        if here.poll():
            return Verdict(**here.recv())
    except EOFError:
        process.join()
        ended = f"ends the process that loads it, with status {process.exitcode}"
        return Verdict(state=state.BROKEN, reason=f"{record.asked} {ended}.")
    finally:
        process.kill()
        process.join()
        here.close()
    return Verdict(state=state.BROKEN, reason=f"{record.asked} is not loaded after {limit_s:g} s.", seconds=limit_s)


def _child(record: LoadRecord, there: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    had_torch = "torch" in sys.modules
    verdict = Verdict(state=state.BROKEN)
    try:
        _ACTIONS.get(record.group, _import)(record, verdict)
    except (Exception, SystemExit) as error:
        known = isinstance(error, PluginError)
        record.state = state.BROKEN
        record.reason = str(error) if known else f"{record.asked} raises {type(error).__name__}: {error}."
    torch = sys.modules.get("torch")
    verdict.state, verdict.reason, verdict.seconds = record.state, record.reason, record.seconds or 0.0
    verdict.registered, verdict.torch = (
        record.registered,
        torch is not None and (record.group in FAMILIES or not had_torch),
    )
    verdict.device = torch is not None and torch.cuda.is_initialized()
    verdict.metrics = _metrics()
    there.send(vars(verdict))
    os._exit(0)  # whatever the plugin left running


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
