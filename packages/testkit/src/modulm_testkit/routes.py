"""Routes of web applications, as (method, path): core's own, and those that a plugin adds."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any


def routes_of(routes: Iterable[Any]) -> set[tuple[str, str]]:
    """Return (method, path) of Starlette's routes; names of path parameters make no difference."""
    return {
        (method, re.sub(r"\{[^}:]*", "{", getattr(route, "path", "")))
        for route in flattened(routes)
        for method in (getattr(route, "methods", None) or {"ANY"})
        if method != "HEAD"
    }


def flattened(routes: Iterable[Any]) -> Iterable[Any]:
    """Return routes with those of included routers, which newer versions of FastAPI keep inside."""
    try:
        from fastapi import routing
    except ImportError:  # without FastAPI nobody has included a router
        return routes
    found: Iterable[Any] = getattr(routing, "iter_route_contexts", iter)(routes)
    return found


@cache
def core_routes() -> frozenset[tuple[str, str]]:
    """Return the routes of core's server; empty where modulm-core[serve] is not installed."""
    try:
        from fastapi import FastAPI

        from modulm.server.app import add_routes
    except ImportError:
        return frozenset()
    app = FastAPI()
    add_routes(app, ())
    return frozenset(routes_of(app.routes))
