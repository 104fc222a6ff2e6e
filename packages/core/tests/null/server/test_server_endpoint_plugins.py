"""Endpoint plugins: loaded only when named, in two phases, behind the key; a route with two owners is an error."""

import asyncio

import pytest

from modulm.errors import Broken, Incompatible
from modulm.plugins import discovery

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


def test_a_named_plugin_serves_and_gets_the_engine(make_with):
    server = make_with({}, named="extra", options={"api_key": ["k"]})
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


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/{name:path}", "/metrics"])
def test_a_route_of_core_may_not_be_taken(make_with, path):
    with pytest.raises(Incompatible, match=r"own server and from endpoint plugin 'extra'"):
        make_with({"path": path}, named="extra")


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
