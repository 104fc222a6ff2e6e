"""The kinds of plugin package that can be written: which group each plugs into, and what it needs.

Data only. A kind's files are in `files/<kind>/`.
"""

from dataclasses import dataclass

_NUMPY, _TORCH = "numpy>=1.26", "torch>=2.9"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of plugin.

    Attributes:
        description: What the package is, as a sentence; also its line in `modulm plugins new --list`.
        group: The entry-point group.
        entry: Module and attribute in the package; may have placeholders.
        entry_name: What it is chosen by; may have placeholders.
        noun: What its classes' names end with, and NAME need not say again.
        prefix: Start of a package's name that says what it is and is no part of the name it is chosen by, as `quant`
            in `modulm-quant-awq`.
        requires: What its code imports, beside modulm.
        core, kit: The distributions with the extras that it and its tests need.
    """

    description: str
    group: str
    entry: str
    entry_name: str = "$name"
    noun: str = ""
    prefix: str = ""
    requires: tuple[str, ...] = ()
    core: str = "modulm-core"
    kit: str = "modulm-testkit"


KINDS: dict[str, Kind] = {
    "attention": Kind(
        description="An attention backend: paged attention in plain torch.",
        group="modulm.attention",
        entry="backend:${camel}Attention",
        noun="Attention",
        prefix="attention",
        requires=(_NUMPY, _TORCH),
    ),
    "kernels": Kind(
        description="A kernel provider: packs dense weights once and multiplies by them.",
        group="modulm.kernels",
        entry="provider:${camel}Kernels",
        noun="Kernels",
        prefix="kernels",
        requires=(_NUMPY, _TORCH),
    ),
    "quantization": Kind(
        description="A checkpoint format: weights in int8 with one scale per row, and a tool that writes it.",
        group="modulm.quantization",
        entry="scheme:${camel}Scheme",
        noun="Scheme",
        prefix="quant",
        requires=(_NUMPY, "safetensors>=0.5", _TORCH),
    ),
    "model": Kind(
        description="A model architecture: a decoder like Llama, built from modulm.nn.",
        group="modulm.models",
        entry="model:${camel}ForCausalLM",
        entry_name="${camel}ForCausalLM",
        prefix="models",
        kit="modulm-testkit[models]",
        requires=(_TORCH,),
    ),
    "structured-output": Kind(
        description="A grammar backend: makes an output one of several texts.",
        group="modulm.structured_output",
        entry="backend:${camel}Backend",
        noun="Backend",
        prefix="structured",
        kit="modulm-testkit[structured]",
        requires=(_NUMPY,),
    ),
    "tool-parser": Kind(
        description="A tool parser: finds calls that a model writes as JSON between marks.",
        group="modulm.tool_parsers",
        entry="parser:${camel}ToolParser",
        noun="ToolParser",
        prefix="tool",
    ),
    "reasoning-parser": Kind(
        description="A reasoning parser: tells the thinking between two marks from the answer.",
        group="modulm.reasoning_parsers",
        entry="parser:${camel}ReasoningParser",
        noun="ReasoningParser",
        prefix="reasoning",
    ),
    "speculator": Kind(
        description="A speculator: proposes tokens that the model only has to confirm.",
        group="modulm.speculators",
        entry="speculator:${camel}Speculator",
        noun="Speculator",
        prefix="spec",
    ),
    "lora-resolver": Kind(
        description="A LoRA resolver: finds adapters by name, in a folder.",
        group="modulm.lora_resolvers",
        entry="resolver:${camel}Resolver",
        noun="Resolver",
        prefix="lora",
    ),
    "stat-logger": Kind(
        description="A stat logger: writes a line of JSON for every request that ends.",
        group="vllm.stat_logger_plugins",
        entry="logger:${camel}StatLogger",
        noun="StatLogger",
        prefix="metrics",
        requires=("msgspec>=0.19",),
    ),
    "platform": Kind(
        description="A platform: a kind of device with its memory, types and preferences; here, the processor.",
        group="vllm.platform_plugins",
        entry="probe:probe",
        noun="Platform",
        prefix="platform",
        requires=(_TORCH,),
    ),
    "io-processor": Kind(
        description="An IO processor: turns documents into prompts, and the model's outputs into one answer.",
        group="vllm.io_processor_plugins",
        entry="entry:processor",
        noun="Processor",
        prefix="io",
    ),
    "endpoint": Kind(
        description="An endpoint plugin: routes of its own in the server, with the engine at hand.",
        group="vllm.endpoint_plugins",
        entry="plugin:${camel}Endpoint",
        noun="Endpoint",
        prefix="endpoint",
        requires=("fastapi>=0.115",),
        core="modulm-core[serve]",
        kit="modulm-testkit[endpoint]",
    ),
    "logits-processor": Kind(
        description="A logits processor: forbids the tokens that a request lists.",
        group="vllm.logits_processors",
        entry="processor:${camel}LogitsProcessor",
        noun="LogitsProcessor",
        prefix="logits",
        requires=(_TORCH,),
    ),
    "general": Kind(
        description="A general plugin: a function that every process calls, and that registers things by string.",
        group="vllm.general_plugins",
        entry="plugin:register",
    ),
}
