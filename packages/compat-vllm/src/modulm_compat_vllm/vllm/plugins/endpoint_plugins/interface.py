"""Endpoint plugins: what they must have, and their two phases. modulm's server goes through the same code.

Unlike vLLM's, it lets no plugin take a route that another has: that is an error naming both.
"""

import argparse
from collections.abc import Iterable
from typing import Any

from vllm import plugins

from modulm.interfaces.endpoint import EndpointPlugin

__all__ = ["EndpointPlugin", "attach_endpoint_plugins", "init_endpoint_plugins_state"]


def attach_endpoint_plugins(app: Any, supported_tasks: Iterable[str] | None = None) -> None:
    """Let each plugin that VLLM_PLUGINS names and whose task is supported add its routes to a FastAPI app."""
    from modulm.server import endpoints

    endpoints.attach(app, plugins.load_endpoint_plugins(supported_tasks))


async def init_endpoint_plugins_state(engine_client: Any, state: Any, args: argparse.Namespace) -> None:
    """Tell each plugin that was attached of the engine; does nothing where none was."""
    from modulm.server import endpoints

    await endpoints.start(state, engine_client, args)
