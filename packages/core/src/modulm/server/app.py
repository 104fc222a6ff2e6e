"""The web application: routes, error bodies, keys, limits, plugins, and the OpenAPI document.

Where to look next: `completions.py` and `chat.py` for what the main routes do, `listener.py` for how this is served.
"""

import argparse
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from modulm.errors import ConfigError
from modulm.plugins import refs
from modulm.server import chat, completions, endpoints, errors, status, tokens
from modulm.server.body import BodyLimit
from modulm.server.keys import Keys
from modulm.server.options import ServerOptions
from modulm.server.request_ids import RequestIds
from modulm.server.schema.chat import ChatCompletion, ChatRequest
from modulm.server.schema.completions import Completion, CompletionRequest
from modulm.server.schema.errors import ErrorBody
from modulm.server.schema.models import Model, ModelList
from modulm.server.schema.tokens import DetokenizeRequest, Text, TokenizeRequest, Tokens
from modulm.server.serving import Serving

if TYPE_CHECKING:
    from modulm.async_llm import AsyncLLM

Handler = Callable[..., Coroutine[Any, Any, Any]]
_POSTS: tuple[tuple[str, Handler, type, type], ...] = (
    ("/v1/completions", completions.create_completion, CompletionRequest, Completion),
    ("/v1/chat/completions", chat.create_chat_completion, ChatRequest, ChatCompletion),
    ("/tokenize", tokens.tokenize, TokenizeRequest, Tokens),
    ("/detokenize", tokens.detokenize, DetokenizeRequest, Text),
)
_GETS: tuple[tuple[str, Handler, type | None], ...] = (
    ("/v1/models", status.list_models, ModelList),
    ("/v1/models/{model:path}", status.show_model, Model),
    ("/v1/plugins", status.list_plugins, None),
    ("/health", status.health, None),
    ("/ready", status.ready, None),
    ("/ping", status.health, None),
    ("/version", status.show_version, None),
    ("/load", status.load, None),
)
_REF = "#/components/schemas/{name}"


class _Plain(APIRoute):
    """A route whose function takes the request as it is: nothing of FastAPI's stands between, nor sees every chunk."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def build_app(
    llm: "AsyncLLM",
    options: ServerOptions,
    args: argparse.Namespace | None = None,
    *,
    stat_loggers: Sequence[Any] = (),
) -> FastAPI:
    """Return the application that serves `llm`; endpoint plugins are told `args`. Stat loggers may have `routes()`.

    Raises `ConfigError` for a middleware that cannot be had, and what endpoint plugins do wrong.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await endpoints.start(app.state, llm, args or argparse.Namespace())
        yield

    document = None if options.disable_fastapi_docs else "/openapi.json"  # without it, /docs and /redoc go too
    app = FastAPI(title="modulm", version=metadata.version("modulm-core"), lifespan=lifespan, openapi_url=document)
    app.state.serving = Serving(llm, options)
    app.state.engine_client, app.state.args = llm, args
    add_routes(app, stat_loggers)
    endpoints.attach(app)
    errors.add_handlers(app)
    _add_middleware(app, options)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]
    return app


def add_routes(app: FastAPI, stat_loggers: Sequence[Any]) -> None:
    """Add core's routes, and those that stat loggers offer."""
    for path, handler, body, answer in _POSTS:
        content = {"application/json": {"schema": _ref(body)}}
        extra = {"requestBody": {"required": True, "content": content}}
        shown = _responses(answer)
        app.router.add_api_route(
            path, handler, methods=["POST"], responses=shown, openapi_extra=extra, route_class_override=_Plain
        )
    for path, handler, told in _GETS:
        app.add_api_route(path, handler, methods=["GET"], responses=_responses(told))
    app.add_api_route("/ping", status.health, methods=["POST"], responses=_responses(None), operation_id="ping")
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        app.add_api_route(path, status.change_adapters, methods=["POST"], responses=_responses(None))
    offered = [route for logger in stat_loggers for route in getattr(logger, "routes", list)()]
    app.router.routes += offered
    if not any(getattr(route, "path", "") == "/metrics" for route in offered):
        app.add_api_route("/metrics", status.no_metrics, methods=["GET"], responses=_responses(None))


def _add_middleware(app: FastAPI, options: ServerOptions) -> None:
    """The last one added is the first to see a request: the user's own, as in vLLM, the last named before all."""
    app.add_middleware(BodyLimit, max_bytes=options.max_body_bytes)
    if options.enable_request_id_headers:
        app.add_middleware(RequestIds)
    if options.api_key:
        app.add_middleware(Keys, keys=options.api_key)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=options.allowed_origins,
        allow_methods=options.allowed_methods,
        allow_headers=options.allowed_headers,
        allow_credentials=options.allow_credentials,
    )
    for kind, more in users_middleware(options.middleware):
        app.add_middleware(kind, **more)


def users_middleware(names: Sequence[str]) -> list[tuple[Any, dict[str, Any]]]:
    """Import what `--middleware` names: ASGI classes, and functions for HTTP. Raises `ConfigError` or `Broken`."""
    found: list[tuple[Any, dict[str, Any]]] = []
    for name in names:
        each = refs.resolve(name, f"Middleware {name!r}")
        if inspect.isclass(each):
            found.append((each, {}))
        elif inspect.iscoroutinefunction(each):
            found.append((BaseHTTPMiddleware, {"dispatch": each}))
        else:
            raise ConfigError(f"middleware={name!r} is refused: it is neither a class nor an async function.")
    return found


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _responses(answer: type | None) -> dict[int | str, dict[str, Any]]:
    """Every route may answer with an error body, and generations with events."""
    content: dict[str, Any] = {"application/json": {"schema": _ref(answer) if answer else {"type": "object"}}}
    if answer in (Completion, ChatCompletion):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    failed = {"description": "What is wrong", "content": {"application/json": {"schema": _ref(ErrorBody)}}}
    return {200: {"description": "The answer", "content": content}, "4XX": failed, "5XX": failed}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the document: paths as FastAPI collects them, schemas from the structs."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        kinds = [kind for _, _, body, answer in _POSTS for kind in (body, answer)]
        kinds += [answer for _, _, answer in _GETS if answer is not None]
        _, schemas = msgspec.json.schema_components([*kinds, ErrorBody], ref_template=_REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        app.openapi_schema = document
    return app.openapi_schema
