"""Endpoint plugins that are wrong in one way each."""

from contract import Contract
from fastapi import APIRouter

from modulm_testkit.endpoint import EndpointConformance


class Echo:
    """Serves one route."""

    name = "echo"
    required_tasks = ("generate",)
    path = "/v1/echo"

    def attach_router(self, app):
        router = APIRouter()

        @router.get(self.path)
        async def echo():
            return {"said": "echo"}

        app.include_router(router)

    async def init_state(self, engine_client, state, args):
        state.echo = engine_client


endpoint = Contract("endpoint", EndpointConformance, "plugin", Echo)
mutant = endpoint.mutant


@mutant("test_has_the_members_of_a_plugin")
class HasNoName(Echo):
    """Its name is empty."""

    name = ""


@mutant("test_requires_tasks_or_none")
class RequiresLetters(Echo):
    """`required_tasks` is a string."""

    required_tasks = "generate"


@mutant("test_adds_routes")
class AddsNothing(Echo):
    """`attach_router` forgets to include its router."""

    def attach_router(self, app):
        APIRouter()


@mutant("test_takes_no_route_of_core")
class TakesHealth(Echo):
    """It serves /health."""

    path = "/health"


@mutant("test_attaches_to_every_app")
class AttachesOnce(Echo):
    """Whoever comes second gets another path."""

    made = 0

    def __init__(self):
        AttachesOnce.made += 1
        self.path = f"/v1/echo/{AttachesOnce.made}"


@mutant("test_can_be_described")
class CannotBeDescribed(Echo):
    """A route's description is no text."""

    def attach_router(self, app):
        async def echo():
            return {}

        app.add_api_route(self.path, echo, openapi_extra={"parameters": 3, "responses": object()})
        app.openapi_tags = 7


@mutant("test_second_phase_is_awaited")
class InitialisesAtOnce(Echo):
    """`init_state` is no coroutine."""

    def init_state(self, engine_client, state, args):
        state.echo = engine_client
