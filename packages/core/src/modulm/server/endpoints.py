"""Endpoint plugins (`vllm.endpoint_plugins`): those that VLLM_PLUGINS names add routes, then get the engine's door.

Unlike vLLM, a route that is there already is an error naming both owners; nothing is replaced.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastapi import FastAPI, routing

from modulm.errors import Broken, Incompatible
from modulm.log import logger
from modulm.plugins import discovery
from modulm.plugins.families import ENDPOINT
from modulm.plugins.hooks import load_endpoint_plugins
from modulm.plugins.report import loaded_line

TASKS = ("generate",)
_CORE = "modulm's own server"
_log = logger("server")


def attach(app: FastAPI, plugins: Sequence[Any] | None = None) -> None:
    """Let each plugin add its routes, after core's: `plugins`, or those installed. Sets `app.state.endpoint_plugins`.

    Raises `Broken` when one fails, and `Incompatible` when a route has two owners.
    """
    owners = {route: _CORE for route in routes_of(app.router.routes)}
    app.state.endpoint_plugins = load_endpoint_plugins(TASKS) if plugins is None else plugins
    for plugin in app.state.endpoint_plugins:
        mine = f"endpoint plugin {plugin.name!r}"
        before = list(app.router.routes)
        try:
            plugin.attach_router(app)
        except (Exception, SystemExit) as error:
            raise _failed(mine, error) from error
        for route in routes_of(each for each in app.router.routes if all(each is not old for old in before)):
            if owners.setdefault(route, mine) != mine:
                method, path = route
                raise Incompatible(
                    f"Route {method} {path} comes from {owners[route]} and from {mine}. Both cannot be served: change "
                    "the plugin's path, or take it out of VLLM_PLUGINS."
                )
    if line := loaded_line(discovery.records(ENDPOINT)):
        _log.info("Endpoint plugins: %s.", line)
    app.openapi_schema = None


async def start(state: Any, llm: Any, args: argparse.Namespace) -> None:
    """Give each plugin that was attached the engine's door and the app's `state`. Raises `Broken` when one fails."""
    for plugin in getattr(state, "endpoint_plugins", ()):
        try:
            await plugin.init_state(llm, state, args)
        except (Exception, SystemExit) as error:
            raise _failed(f"endpoint plugin {plugin.name!r}", error) from error


def _failed(who: str, error: BaseException) -> Broken:
    return Broken(
        f"{who.capitalize()} failed: {type(error).__name__}: {error}. Mend it, or take it out of VLLM_PLUGINS."
    )


def routes_of(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield (method, path) of every route; names of path parameters make no difference."""
    flattened = getattr(routing, "iter_route_contexts", iter)  # older versions of FastAPI flatten routers themselves
    for route in flattened(list(routes)):
        path = re.sub(r"\{[^}:]*", "{", getattr(route, "path", None) or "")
        for method in sorted(getattr(route, "methods", None) or {"ANY"}):
            yield method, path
