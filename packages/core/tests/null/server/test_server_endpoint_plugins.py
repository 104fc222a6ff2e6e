"""Endpoint plugins: loaded only when named, in two phases, behind the key; a route with two owners is an error.

vLLM tests its own with 18 cases (its tests/plugins_tests/test_endpoint_plugins.py); here they are:

1 the protocol: test_the_protocol. 2, 3, 4 the list unset, empty, naming it: test_an_unnamed_plugin_is_not_loaded and
test_a_named_plugin_serves_and_gets_the_engine. 5, 6 required tasks that are served and that are not:
test_a_plugin_may_require_a_task. 7 no task is known: test_no_task_is_known. 8 a factory that raises:
test_a_factory_that_raises_is_left_out_and_the_server_serves. 9 nothing to attach:
test_without_plugins_the_routes_are_core_s. 10 to 13 a plugin takes /version or /metrics, with and without a schema:
there it replaces core's route, here that is an error, test_a_route_of_core_may_not_be_taken. 14 another method of
such a path: test_another_method_of_a_path_of_core. 15 two plugins with one route: there the later one wins, here that
is an error, test_two_plugins_may_not_share_a_route. 16 the second phase without the first:
test_the_second_phase_alone_does_nothing. 17 a server without an engine: test_a_plugin_may_get_no_engine. 18 end to
end: test_a_named_plugin_serves_and_gets_the_engine.
"""

import asyncio
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from modulm.errors import Broken, Incompatible
from modulm.interfaces.endpoint import EndpointPlugin
from modulm.plugins import discovery
from modulm.plugins.hooks import load_endpoint_plugins
from modulm.server.endpoints import attach, start

PLUGIN = """
from fastapi import APIRouter

class Plugin:
    name = "{name}"
    required_tasks = {tasks}

    def attach_router(self, app):
        router = APIRouter()

        @router.get("{path}")
        async def extra():
            return {{"engine": type(self.engine).__name__, "args": repr(self.args)}}

        app.include_router(router)

    async def init_state(self, engine_client, state, args):
        self.engine, self.args = engine_client, args
        state.{name} = True
"""
GROUP = "vllm.endpoint_plugins"


@pytest.fixture
def make_with(site, make_server, monkeypatch):
    """Install plugins, name them, and return a factory of servers."""

    def make(*plugins, named=None, options=None):
        for plugin in plugins:
            plugin = {"name": "extra", "path": "/v1/extra", "tasks": None, **plugin}
            name = plugin["name"]
            site.install(
                f"ext-{name}", {GROUP: {name: f"ext_{name}:Plugin"}}, **{f"ext_{name}": PLUGIN.format(**plugin)}
            )
        if named is not None:
            monkeypatch.setenv("VLLM_PLUGINS", named)
        site.forget()
        return make_server(options=options)

    yield make
    discovery.reset()


def test_a_named_plugin_serves_and_gets_the_engine(make_with, caplog):
    caplog.set_level("INFO", "modulm")
    server = make_with({}, named="extra", options={"api_key": ["k"]})
    assert "Endpoint plugins: ext-extra 1.0 (extra)." in caplog.messages
    assert server.ask("/v1/extra")[0] == 401
    status, _, answer = server.ask("/v1/extra", headers={"Authorization": "Bearer k"})
    assert (status, answer["engine"]) == (200, "AsyncLLM")
    assert server.app.state.extra is True
    assert "/v1/extra" in server.ask("/openapi.json", headers={"Authorization": "Bearer k"})[2]["paths"]


@pytest.mark.parametrize("named", [None, "", "other"])
def test_an_unnamed_plugin_is_not_loaded(make_with, named):
    assert make_with({}, named=named).ask("/v1/extra")[0] == 404


@pytest.mark.parametrize(
    ("tasks", "status"), [("('generate',)", 200), ("('embed', 'generate')", 200), ("('embed',)", 404)]
)
def test_a_plugin_may_require_a_task(make_with, tasks, status):
    assert make_with({"tasks": tasks}, named="extra").ask("/v1/extra")[0] == status


@pytest.mark.parametrize("is_documented", [True, False])
@pytest.mark.parametrize("path", ["/version", "/health", "/v1/models", "/v1/models/{name:path}", "/metrics"])
def test_a_route_of_core_may_not_be_taken(make_with, path, is_documented):
    with pytest.raises(Incompatible, match=r"own server and from endpoint plugin 'extra'"):
        make_with({"path": path}, named="extra", options={"disable_fastapi_docs": not is_documented})


def test_two_plugins_may_not_share_a_route(make_with):
    with pytest.raises(Incompatible, match="endpoint plugin 'one' and from endpoint plugin 'two'"):
        make_with({"name": "one"}, {"name": "two"}, named="one,two")


def test_a_plugin_that_fails_is_an_error_that_names_it(make_with, site, monkeypatch):
    text = "class Plugin:\n name = 'bad'\n required_tasks = None\n def attach_router(self, app): 1 / 0\n"
    text += " async def init_state(self, *args): pass\n"
    site.install("ext-bad", {GROUP: {"bad": "ext_bad:Plugin"}}, ext_bad=text)
    with pytest.raises(Broken, match="Endpoint plugin 'bad' failed: ZeroDivisionError"):
        make_with(named="bad")


MORE = """
from fastapi import HTTPException, WebSocket
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def below(request):
    return PlainTextResponse("below")

class Plugin:
    name = "more"
    required_tasks = None

    def attach_router(self, app):
        app.mount("/tools", Starlette(routes=[Route("/x", below)]))

        @app.get("/odd")
        async def odd():
            raise HTTPException(499, "odd")

        @app.websocket("/talk")
        async def talk(websocket: WebSocket):
            await websocket.accept()
            await websocket.close()

    async def init_state(self, engine_client, state, args): ...
"""


@pytest.fixture
def more(site, make_server, monkeypatch):
    """A server with a key and a plugin that has a mounted application, a websocket and an unheard-of status."""
    site.install("ext-more", {GROUP: {"more": "ext_more:Plugin"}}, ext_more=MORE)
    monkeypatch.setenv("VLLM_PLUGINS", "more")
    site.forget()
    yield make_server(options={"api_key": ["k"]})
    discovery.reset()


def test_keys_guard_what_is_mounted_and_websockets(more):
    key = {"Authorization": "Bearer k"}
    assert [more.ask("/tools/x", headers=headers)[0] for headers in ({}, key)] == [401, 200]
    assert [talked(more.app, headers) for headers in ([], [(b"authorization", b"Bearer k")])] == [
        ["websocket.close"],
        ["websocket.accept", "websocket.close"],
    ]


def talked(app, headers):
    """Connect to the plugin's websocket; the kinds of messages that come back."""
    scope = {"type": "websocket", "path": "/talk", "headers": headers, "query_string": b"", "subprotocols": []}
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message["type"])

    asyncio.run(app({**scope, "scheme": "ws", "root_path": "", "client": None, "server": None}, receive, send))
    return sent


def test_a_status_without_a_name_is_passed_on(more):
    status, _, answer = more.ask("/odd", headers={"Authorization": "Bearer k"})
    assert (status, answer["error"]["message"], answer["error"]["type"]) == (499, "odd", "invalid_request_error")


class Bare:
    """A plugin without a fault; `methods` of `path` are its own."""

    name, required_tasks, path, methods = "bare", None, "/version", ["POST"]

    def attach_router(self, app):
        app.add_api_route(self.path, lambda: {"bare": True}, methods=self.methods)

    async def init_state(self, engine_client, state, args):
        state.given = (engine_client, args)


def test_the_protocol():
    assert isinstance(Bare(), EndpointPlugin)
    assert not isinstance(SimpleNamespace(name="x", required_tasks=None), EndpointPlugin)


def test_no_task_is_known(site, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "any,generating")
    classes = PLUGIN.format(name="any", path="/any", tasks=None).replace("class Plugin", "class Any")
    classes += "\nclass Generating(Any):\n    required_tasks = ('generate',)\n"
    entries = {"any": "ext_tasks:Any", "generating": "ext_tasks:Generating"}
    site.install("ext-tasks", {GROUP: entries}, ext_tasks=classes)
    assert [type(plugin).__name__ for plugin in load_endpoint_plugins(None)] == ["Any"]
    assert len(load_endpoint_plugins(["generate"])) == 2


def test_a_factory_that_raises_is_left_out_and_the_server_serves(site, make_with, caplog):
    site.install("ext-sad", {GROUP: {"sad": "ext_sad:make"}}, ext_sad="def make(): raise OSError('no disk')")
    server = make_with({}, named="sad,extra")
    assert server.ask("/v1/extra")[0] == 200
    assert "Endpoint plugin 'sad' (ext-sad 1.0) is installed but broken: calling it raised OSError" in caplog.text


def test_without_plugins_the_routes_are_core_s(site):
    app = FastAPI()
    before = list(app.router.routes)
    attach(app)
    assert (list(app.router.routes), app.state.endpoint_plugins) == (before, [])


def test_another_method_of_a_path_of_core():
    app = FastAPI()
    app.add_api_route("/version", lambda: "ours", methods=["GET"])
    attach(app, [Bare()])
    routes = {method: route for route in app.routes if route.path == "/version" for method in route.methods}
    assert routes["GET"].endpoint() == "ours" and routes["POST"].endpoint() == {"bare": True}
    assert set(app.openapi()["paths"]["/version"]) == {"get", "post"}


def test_the_second_phase_alone_does_nothing():
    state = SimpleNamespace()
    asyncio.run(start(state, object(), None))
    assert vars(state) == {}


def test_a_plugin_may_get_no_engine():
    app = FastAPI()
    attach(app, [Bare()])
    asyncio.run(start(app.state, None, "args"))
    assert app.state.given == (None, "args")


@pytest.mark.parametrize("error", ["SystemExit(3)", "OSError('no disk')"])
def test_whatever_the_second_phase_raises_ends_the_start(error):
    class Sad(Bare):
        async def init_state(self, engine_client, state, args):
            raise eval(error)

    app = FastAPI()
    attach(app, [Sad()])
    with pytest.raises(Broken, match="Endpoint plugin 'bare' failed: (SystemExit: 3|OSError: no disk)"):
        asyncio.run(start(app.state, None, None))
