"""Conformance of endpoint plugins (`modulm.interfaces.endpoint`): routes beside core's, in two phases.

Needs FastAPI (modulm-testkit[endpoint]). The engine's door is a fake, which answers every prompt with itself.
"""

import argparse
import asyncio
import inspect
from typing import Any

import pytest

from modulm.interfaces.endpoint import EndpointPlugin
from modulm_testkit.fakes import FakeEngineClient
from modulm_testkit.routes import core_routes, routes_of
from modulm_testkit.suite import Conformance, ask_for


class EndpointConformance(Conformance):
    """Give `plugin`: what the entry point of `vllm.endpoint_plugins` names; called, it returns the plugin."""

    @pytest.fixture(name="plugin")
    def _plugin(self) -> Any:
        """Return the class or function."""
        ask_for("plugin", "MyPlugin")

    @pytest.fixture
    def made(self, plugin: Any) -> EndpointPlugin:
        """The plugin."""
        pytest.importorskip("fastapi", reason="modulm-testkit[endpoint] is not installed")
        one: EndpointPlugin = plugin()
        return one

    def test_has_the_members_of_a_plugin(self, made: EndpointPlugin) -> None:
        """It has a name, required tasks and both phases; without them it is refused when the server starts."""
        assert isinstance(made, EndpointPlugin), f"{made!r} lacks name, required_tasks, attach_router or init_state"
        assert isinstance(made.name, str), f"its name is {made.name!r}"
        assert made.name, "its name is empty"

    def test_requires_tasks_or_none(self, made: EndpointPlugin) -> None:
        """`required_tasks` is None or a tuple of names: a string would be taken letter by letter."""
        tasks = made.required_tasks
        assert tasks is None or (isinstance(tasks, tuple | list) and all(isinstance(task, str) for task in tasks))

    def test_adds_routes(self, made: EndpointPlugin) -> None:
        """`attach_router` adds at least one route, whose path begins with a slash."""
        added = self._added(made)
        assert added, "it adds no route"
        assert all(path.startswith("/") for _, path in added)

    def test_takes_no_route_of_core(self, made: EndpointPlugin) -> None:
        """No route is one that core serves: nothing is replaced, the server would not start."""
        taken = self._added(made) & core_routes()
        assert not taken, f"{sorted(taken)} are served by core"

    def test_attaches_to_every_app(self, plugin: Any, made: EndpointPlugin) -> None:
        """Two servers in one process have the same routes: nothing is kept in the module."""
        assert self._added(made) == self._added(plugin())

    def test_can_be_described(self, made: EndpointPlugin) -> None:
        """The OpenAPI document can be made with its routes in it."""
        app = _app()
        made.attach_router(app)
        assert app.openapi()["paths"] is not None

    def test_second_phase_is_awaited(self, made: EndpointPlugin) -> None:
        """`init_state` is a coroutine that takes the engine's door, the app's state and the server's arguments."""
        assert inspect.iscoroutinefunction(made.init_state), "init_state is not async"
        app = _app()
        made.attach_router(app)
        asyncio.run(made.init_state(FakeEngineClient(), app.state, argparse.Namespace(model="tiny")))

    def _added(self, one: EndpointPlugin) -> set[tuple[str, str]]:
        app = _app()
        before = routes_of(app.routes)
        one.attach_router(app)
        return routes_of(app.routes) - before


def _app() -> Any:
    from fastapi import FastAPI

    return FastAPI()
