"""Registers the architecture `MyCustomLlama`, by string: nothing of it is imported until a checkpoint names it."""

from vllm import ModelRegistry


def register() -> None:
    """Called once in every process."""
    if "MyCustomLlama" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("MyCustomLlama", "custom_llama.model:MyCustomLlama")
