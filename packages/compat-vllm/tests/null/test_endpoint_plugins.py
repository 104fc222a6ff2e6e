"""Endpoint plugins through vLLM's names: allow-list, tasks, both phases. What is taken, no plugin may replace."""

import asyncio
from types import SimpleNamespace

import fastapi
import pytest
from fastapi.testclient import TestClient
from vllm import plugins
from vllm.plugins.endpoint_plugins.interface import (
    EndpointPlugin,
    attach_endpoint_plugins,
    init_endpoint_plugins_state,
)

from modulm.errors import Broken, Incompatible

GROUP = plugins.ENDPOINT_PLUGINS_GROUP
ADMIN = """
from fastapi import APIRouter, HTTPException, Request
class Admin:
    name = "not the entry point's"
    required_tasks = None
    def attach_router(self, app):
        router = APIRouter()
        @router.get("/v1/admin/scheduler_config")
        async def scheduler_config(raw_request: Request):
            client = getattr(raw_request.app.state, "admin_client", None)
            if client is None:
                raise HTTPException(503, "no engine")
            return await client.collective_rpc("get_scheduler_config")
        app.include_router(router)
    async def init_state(self, engine_client, state, args):
        state.admin_client = engine_client
class Generating(Admin): required_tasks = ("generate",)
class Embedding(Admin): required_tasks = ("embed",)
class Raising:
    def __init__(self): raise OSError("no disk")
class Bare: name = "bare"
"""


class Made:
    """A plugin that routes `path`, and answers its own name."""

    required_tasks = None

    def __init__(self, name, path, method="GET"):
        self.name, self.path, self.method = name, path, method
        self.started_with = None

    def attach_router(self, app):
        app.add_api_route(self.path, lambda: self.name, methods=[self.method])

    async def init_state(self, engine_client, state, args):
        self.started_with = (engine_client, state, args)


@pytest.fixture
def app():
    made = fastapi.FastAPI()
    made.add_api_route("/version", lambda: "ours", methods=["GET"])
    made.mount("/metrics", fastapi.FastAPI())
    return made


@pytest.fixture
def admin(site, monkeypatch):
    """Install the plugin class `kind` as entry point "admin"."""

    def install(kind="Admin", named="admin"):
        if named is not None:
            monkeypatch.setenv("VLLM_PLUGINS", named)
        site.install(GROUP, {"admin": f"admin_plugin:{kind}"}, admin_plugin=ADMIN)

    return install


def loading(monkeypatch, *made):
    monkeypatch.setattr("vllm.plugins.load_endpoint_plugins", lambda tasks=None: list(made))


def get(app, path):
    return TestClient(app).get(path)


def test_the_protocol():
    assert isinstance(Made("x", "/x"), EndpointPlugin)
    assert not isinstance(SimpleNamespace(name="x"), EndpointPlugin)


def test_none_is_loaded_when_the_list_is_unset_and_a_warning_names_them(admin, caplog):
    admin(named=None)
    assert plugins.load_endpoint_plugins(["generate"]) == []
    assert "Endpoint plugins are installed but not named in VLLM_PLUGINS, so they are off: admin" in caplog.text


def test_none_is_loaded_when_the_list_is_empty(admin):
    admin(named="")
    assert plugins.load_endpoint_plugins(["generate"]) == []


def test_one_is_loaded_when_its_entry_point_is_named(admin):
    admin(named="admin")
    assert [plugin.name for plugin in plugins.load_endpoint_plugins()] == ["not the entry point's"]


@pytest.mark.parametrize(
    ("kind", "tasks", "is_loaded"),
    [
        ("Admin", ["embed"], True),
        ("Generating", ["generate"], True),
        ("Embedding", ["generate"], False),
        ("Generating", None, False),
    ],
)
def test_tasks_that_a_plugin_requires(admin, kind, tasks, is_loaded):
    admin(kind)
    assert bool(plugins.load_endpoint_plugins(tasks)) is is_loaded


@pytest.mark.parametrize("kind", ["Raising", "Bare"])
def test_a_factory_that_fails_is_left_out(admin, caplog, kind):
    admin(kind)
    assert plugins.load_endpoint_plugins(["generate"]) == []
    assert "Endpoint plugin 'admin' (made-up-0 1.0) " in caplog.text


def test_attaching_none_changes_no_route(app, monkeypatch, site):
    before = list(app.router.routes)
    attach_endpoint_plugins(app, ("generate",))
    assert app.router.routes == before and app.state.endpoint_plugins == []


@pytest.mark.parametrize("path", ["/version", "/v1/admin"])
def test_a_route_is_served_and_documented_unless_it_is_taken(app, monkeypatch, path):
    loading(monkeypatch, plugin := Made("mine", path))
    app.openapi()  # a schema that was made before is made anew
    if path == "/version":
        with pytest.raises(Incompatible, match="Route GET /version comes from modulm's own server and from endpoint"):
            attach_endpoint_plugins(app)
        return
    attach_endpoint_plugins(app)
    assert get(app, path).json() == "mine" and path in app.openapi()["paths"]
    assert app.state.endpoint_plugins == [plugin] and get(app, "/version").json() == "ours"


def test_another_method_of_a_route_may_be_added(app, monkeypatch):
    loading(monkeypatch, Made("mine", "/version", "DELETE"))
    attach_endpoint_plugins(app)
    assert get(app, "/version").json() == "ours"
    assert TestClient(app).delete("/version").json() == "mine"


def test_two_plugins_may_not_have_one_route(app, monkeypatch):
    loading(monkeypatch, Made("one", "/x"), Made("two", "/x"))
    with pytest.raises(Incompatible, match="from endpoint plugin 'one' and from endpoint plugin 'two'"):
        attach_endpoint_plugins(app)


def test_the_second_phase_without_the_first_does_nothing():
    state = SimpleNamespace()
    asyncio.run(init_endpoint_plugins_state("engine", state, "args"))
    assert not vars(state)


def test_a_server_without_an_engine_starts_plugins_with_none(app, monkeypatch):
    loading(monkeypatch, plugin := Made("mine", "/x"))
    attach_endpoint_plugins(app, ("render",))
    asyncio.run(init_endpoint_plugins_state(None, app.state, "args"))
    assert plugin.started_with == (None, app.state, "args")


def test_a_plugin_that_fails_in_either_phase_is_an_error_that_names_it(app, monkeypatch):
    loading(monkeypatch, plugin := Made("mine", "/x"))
    attach_endpoint_plugins(app)
    plugin.attach_router = None
    with pytest.raises(Broken, match="Endpoint plugin 'mine' failed: "):
        attach_endpoint_plugins(app)
    plugin.init_state = None
    with pytest.raises(Broken, match="Endpoint plugin 'mine' failed: TypeError"):
        asyncio.run(init_endpoint_plugins_state(None, app.state, None))


def test_from_entry_point_to_answer(app, admin):
    class Client:
        async def collective_rpc(self, method):
            return {"asked": method}

    admin()
    attach_endpoint_plugins(app, ("generate",))
    assert get(app, "/v1/admin/scheduler_config").status_code == 503
    asyncio.run(init_endpoint_plugins_state(Client(), app.state, None))
    assert get(app, "/v1/admin/scheduler_config").json() == {"asked": "get_scheduler_config"}
