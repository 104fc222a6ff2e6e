"""Endpoint plugins under vLLM's names."""

from vllm.plugins.endpoint_plugins.interface import (
    EndpointPlugin,
    attach_endpoint_plugins,
    init_endpoint_plugins_state,
)

__all__ = ["EndpointPlugin", "attach_endpoint_plugins", "init_endpoint_plugins_state"]
