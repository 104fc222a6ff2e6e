"""What a finished request gives back: modulm's own classes, which have vLLM's fields."""

from modulm.outputs import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "RequestOutput"]
