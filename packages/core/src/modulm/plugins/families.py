"""Groups and families: their names, what their members are called in messages, and what a member must be.

Base classes are named as strings and imported only to check an object, so listing costs nothing. Families whose
contract is not written yet have no entry in `_BASES` and are not checked. A class that is written for another engine's
contract may bring what stands for it here: see `check`.
"""

from importlib import import_module
from typing import Any

from modulm.errors import ConfigError, Incompatible, ModulmError, did_you_mean
from modulm.plugins import contracts, refs

GENERAL = "vllm.general_plugins"
PLATFORM = "vllm.platform_plugins"
STAT_LOGGER = "vllm.stat_logger_plugins"
IO_PROCESSOR = "vllm.io_processor_plugins"
ENDPOINT = "vllm.endpoint_plugins"
LOGITS = "vllm.logits_processors"
TEMPLATES = "modulm.templates"
"""No plugins, but templates of plugin packages: see `cli/plugins_new.py`."""

HOOKS = {
    GENERAL: "General plugin",
    PLATFORM: "Platform",
    STAT_LOGGER: "Stat logger",
    IO_PROCESSOR: "IO processor",
    ENDPOINT: "Endpoint plugin",
    LOGITS: "Logits processor",
}
FAMILIES = {
    "modulm.attention": "Attention backend",
    "modulm.checkpoints": "Checkpoint format",
    "modulm.executors": "Executor",
    "modulm.kernels": "Kernel provider",
    "modulm.lora_resolvers": "LoRA resolver",
    "modulm.models": "Model architecture",
    "modulm.quantization": "Quantization",
    "modulm.reasoning_parsers": "Reasoning parser",
    "modulm.speculators": "Speculator",
    "modulm.structured_output": "Structured output backend",
    "modulm.tool_parsers": "Tool parser",
}
NOUNS = {**HOOKS, **FAMILIES}

PROCESS_KINDS = {
    "server": "`modulm serve`: HTTP and the front end; with `--in-process` it is the engine's process too",
    "embedder": "a program that uses `AsyncLLM`: the front end; with `in_process=True` it is the engine's process too",
    "engine": "the process that either starts: engine and worker",
    "offline": "`LLM`, `modulm generate`, `chat`, `config --explain`, `bench latency`: everything in one process",
}
_EVERYWHERE = tuple(PROCESS_KINDS)
_WITH_ENGINE = ("engine", "offline")
PROCESSES: dict[str, tuple[str, ...]] = {
    GENERAL: _EVERYWHERE,
    PLATFORM: _WITH_ENGINE,
    STAT_LOGGER: ("server", "embedder"),
    IO_PROCESSOR: (),
    ENDPOINT: ("server",),
    LOGITS: _EVERYWHERE,
    **dict.fromkeys(FAMILIES, _WITH_ENGINE),
    **dict.fromkeys(("modulm.reasoning_parsers", "modulm.tool_parsers"), _EVERYWHERE),
    "modulm.lora_resolvers": (),
}
"""Group -> the kinds of process that load it, if at all; () where none asks for it yet. A test holds it against real
processes, and docs/extend/processes.md shows it."""

_BASES = {
    "modulm.attention": "modulm.interfaces.attention:AttentionBackend",
    "modulm.checkpoints": "modulm.interfaces.checkpoint:Checkpoint",
    "modulm.executors": "modulm.interfaces.executor:Executor",
    "modulm.kernels": "modulm.interfaces.kernels:KernelProvider",
    "modulm.lora_resolvers": "modulm.interfaces.lora:LoRAResolver",
    "modulm.quantization": "modulm.interfaces.quantization:QuantizationScheme",
    "modulm.reasoning_parsers": "modulm.interfaces.parsers:ReasoningParser",
    "modulm.speculators": "modulm.interfaces.speculator:Speculator",
    "modulm.tool_parsers": "modulm.interfaces.parsers:ToolParser",
    "modulm.structured_output": "modulm.interfaces.structured:StructuredOutputBackend",
    PLATFORM: "modulm.interfaces.platform:Platform",
    STAT_LOGGER: "modulm.interfaces.metrics:StatLoggerBase",
    IO_PROCESSOR: "modulm.interfaces.io_processor:IOProcessor",
    LOGITS: "modulm.interfaces.logits:LogitsProcessor",
}
_SHAPES = {"modulm.models": "modulm.interfaces.model:CausalLM"}
"""Contracts that a class keeps by having what they name, whatever it derives from."""


def need_family(family: str) -> None:
    """Raise `ConfigError` when there is no family of that name."""
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise ConfigError(f"Plugin family {family!r} is unknown. There are: {', '.join(FAMILIES)}.{hint}")


def check(group: str, asked: str, found: Any) -> Any:
    """Check an object against its group's contract and return it. `asked` starts the message, as in `refs.resolve`.

    Of a class with a class method `modulm_class`, what that returns is checked and returned in its place. A class that
    does not take all optional arguments comes back as one that leaves them out: see `contracts.py`.

    Raises `Incompatible` saying what the object is and what it must be; `Broken` when `modulm_class` fails.
    """
    if isinstance(found, type) and (adapted := getattr(found, "modulm_class", None)) is not None:
        try:
            found = adapted()
        except (ModulmError, *refs.PASSING):
            raise
        except BaseException as error:
            raise refs.broken(asked, "calling its modulm_class()", error) from error
    reference = _BASES.get(group) or _SHAPES.get(group)
    if reference is None:
        return found
    module, _, name = reference.partition(":")
    contract = getattr(import_module(module), name)
    if not isinstance(found, type) or (group in _BASES and not issubclass(found, contract)):
        how = "derives from" if group in _BASES else "has what it takes to be"
        raise Incompatible(f"{asked} is {describe(found)}, but must be a class that {how} {module}.{name}.")
    try:
        return contracts.fitted(found, contract)
    except Incompatible as error:
        raise Incompatible(f"{asked} is {describe(found)}, {error}") from None


def describe(found: Any) -> str:
    """Say what an object is: "class pkg.Thing", or "an object of type str"."""
    if isinstance(found, type):
        return f"class {found.__module__}.{found.__qualname__}"
    return f"an object of type {type(found).__name__}"
