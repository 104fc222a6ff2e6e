"""Registers by string what other modules of the package hold: nothing heavy is imported until it is chosen."""

from modulm import ModelRegistry, registry


def register() -> None:
    """The entry point. Called once in every process, so it must be quick and may not touch a device."""
    ModelRegistry.register_model(
        "MyLlamaForCausalLM", "modulm.models.llama:LlamaForCausalLM"
    )  # its name in config.json
    registry("modulm.kernels").register("doubles", "your_package.kernels:Float64Kernels")
