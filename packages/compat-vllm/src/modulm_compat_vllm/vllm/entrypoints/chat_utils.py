"""Ids of tool calls."""

from typing import Any

from vllm.utils import random_uuid


def make_tool_call_id(id_type: str = "random", func_name: str | None = None, idx: int | None = None) -> str:
    """Return an id for a call: random, or for `id_type` "kimi_k2" the function's name and its number."""
    if id_type == "kimi_k2":
        return f"functions.{func_name}:{idx}"
    return f"chatcmpl-tool-{random_uuid()}"


def random_tool_call_id(*ignored: Any) -> str:
    """Return a random id, under its older name."""
    return make_tool_call_id()
