"""Contracts: one file per thing that can be replaced. No torch at run time, no implementation, no knowledge of rooms.

Every docstring says who calls, how often, with which shapes, and what to raise.
"""

VERSIONS: dict[str, int] = {
    "modulm.attention": 1,
    "modulm.checkpoints": 1,
    "modulm.executors": 1,
    "modulm.kernels": 1,
    "modulm.lora_resolvers": 1,
    "modulm.models": 1,
    "modulm.quantization": 1,
    "modulm.reasoning_parsers": 1,
    "modulm.speculators": 1,
    "modulm.structured_output": 1,
    "modulm.tool_parsers": 1,
    "vllm.endpoint_plugins": 1,
    "vllm.general_plugins": 1,
    "vllm.io_processor_plugins": 1,
    "vllm.logits_processors": 1,
    "vllm.platform_plugins": 1,
    "vllm.stat_logger_plugins": 1,
}
"""Each contract's number, by entry-point group. It rises when a plugin that was right before has to change.

A plugin may state which numbers it is written for, in its metadata; `plugins/versions.py` reads that before any import.
"""
