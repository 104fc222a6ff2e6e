"""modulm: an LLM inference engine assembled from packages. Importing it imports no torch; names load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modulm import moved

if TYPE_CHECKING:
    from modulm.async_llm import AsyncLLM as AsyncLLM
    from modulm.llm import LLM as LLM
    from modulm.outputs import CompletionOutput as CompletionOutput
    from modulm.outputs import RequestOutput as RequestOutput
    from modulm.plugins.bootstrap import bootstrap as bootstrap
    from modulm.plugins.models import ModelRegistry as ModelRegistry
    from modulm.plugins.registry import registry as registry
    from modulm.sampling_params import RequestOutputKind as RequestOutputKind
    from modulm.sampling_params import SamplingParams as SamplingParams
    from modulm.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

_WHERE = {
    "AsyncLLM": "modulm.async_llm",
    "CompletionOutput": "modulm.outputs",
    "LLM": "modulm.llm",
    "ModelRegistry": "modulm.plugins.models",
    "RequestOutput": "modulm.outputs",
    "RequestOutputKind": "modulm.sampling_params",
    "SamplingParams": "modulm.sampling_params",
    "StructuredOutputsParams": "modulm.structured_outputs",
    "bootstrap": "modulm.plugins.bootstrap",
    "registry": "modulm.plugins.registry",
}
__all__ = [
    "AsyncLLM",
    "CompletionOutput",
    "LLM",
    "ModelRegistry",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "bootstrap",
    "registry",
]

moved.install()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("modulm-core")
    if name not in _WHERE:
        raise AttributeError(f"module 'modulm' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
