"""Endpoint plugins (group `vllm.endpoint_plugins`): server routes, loaded only when named in VLLM_PLUGINS."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class EndpointPlugin(Protocol):
    """What the entry point's factory returns. Attached in two phases, in the API server process."""

    name: str
    required_tasks: tuple[str, ...] | None

    def attach_router(self, app: Any) -> None:
        """Add routes to the FastAPI app, before it serves."""

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Fill the app's state once the engine is there."""
