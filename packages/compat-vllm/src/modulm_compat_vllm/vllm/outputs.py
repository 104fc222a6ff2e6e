"""What a finished request gives back: modulm's own classes, which have vLLM's fields."""

from dataclasses import dataclass
from typing import Any

from modulm.outputs import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "PoolingRequestOutput", "RequestOutput"]


@dataclass
class PoolingRequestOutput:
    """What pooling gives an IO processor; modulm pools nothing and makes none."""

    request_id: str
    outputs: Any
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
