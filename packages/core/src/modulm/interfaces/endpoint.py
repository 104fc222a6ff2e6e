"""Endpoint plugins (group `vllm.endpoint_plugins`): server routes, loaded only when named in VLLM_PLUGINS.

An entry point of the group is a function without arguments, or the class itself, that returns an `EndpointPlugin`.
`server/endpoints.py` calls it in the server's process, once: `attach_router` after core's own routes are there, and
`init_state` in the event loop, before the first request. A route that is there already is an error.
"""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class EndpointPlugin(Protocol):
    """What the entry point's factory returns. Attached in two phases.

    Attributes:
        name: For messages.
        required_tasks: It is attached where the engine does one of them ("generate"); None: always.
    """

    name: str
    required_tasks: tuple[str, ...] | None

    def attach_router(self, app: Any) -> None:
        """Add routes to the FastAPI app, before it serves."""

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Fill the app's state once the engine is there: `engine_client` is an `AsyncLLM`, `args` the command line."""
