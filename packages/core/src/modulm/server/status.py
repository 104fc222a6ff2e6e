"""Routes that say how things are: models, health, readiness, version, load, plugins; and those that only say no."""

from http import HTTPStatus
from importlib import metadata

from starlette.requests import Request
from starlette.responses import Response

from modulm.errors import EngineError
from modulm.server.errors import Refused
from modulm.server.schema.models import Model, ModelList
from modulm.server.serving import serving_of
from modulm.server.tokens import json_response


async def list_models(request: Request) -> Response:
    """List the names that requests may give."""
    return json_response(ModelList(data=_models(request)))


async def show_model(request: Request) -> Response:
    """Show one of them."""
    name = request.path_params["model"]
    serving_of(request).check_model(name)
    return json_response(next(model for model in _models(request) if model.id == name))


def _models(request: Request) -> list[Model]:
    serving = serving_of(request)
    root, length = serving.llm.config.model, serving.llm.model_config.max_model_len
    return [Model(id=name, created=serving.created, root=root, max_model_len=length) for name in serving.model_names]


async def health(request: Request) -> Response:
    """Whether this process lives and its engine is not gone for good."""
    state = serving_of(request).llm.health()
    if not state.alive:
        raise EngineError(state.reason or "The engine is gone for good. Start the server again.")
    return json_response({"status": "alive"})


async def ready(request: Request) -> Response:
    """Whether a request would be served now."""
    state = serving_of(request).llm.health()
    if not (state.alive and state.ready):
        raise EngineError(state.reason or "The engine is not ready. Ask again later.")
    return json_response({"status": "ready", "restarts": state.restarts})


async def show_version(request: Request) -> Response:
    """Say the version of core."""
    return json_response({"version": metadata.version("modulm-core")})


async def load(request: Request) -> Response:
    """Say how many requests are under way."""
    return json_response({"server_load": serving_of(request).admission.num_open})


async def list_plugins(request: Request) -> Response:
    """Show the load record of every plugin, in every process."""
    return json_response({"object": "list", "data": serving_of(request).llm.plugin_records()})


async def change_adapters(request: Request) -> Response:
    """Say that adapters cannot be loaded."""
    message = "This version serves no LoRA adapters. Merge the adapter into the model, and serve that."
    raise Refused(HTTPStatus.NOT_IMPLEMENTED, message, code="lora_not_supported")


async def no_metrics(request: Request) -> Response:
    """Say where metrics come from."""
    message = "No stat logger offers metrics here. They come with a plugin: pip install modulm-metrics-prometheus."
    raise Refused(HTTPStatus.NOT_IMPLEMENTED, message, code="metrics_not_installed")
