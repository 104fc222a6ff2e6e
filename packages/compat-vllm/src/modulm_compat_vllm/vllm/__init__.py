"""What `import vllm` gives: the names that plugins use, mapped onto modulm. Imports no torch; names load on first use.

The modules below this one carry vLLM's names and, as far as they go, its behaviour; the work is done in modulm, and in
the modules beside this folder where modulm's contract has to be met by a class written for vLLM's.
"""

from importlib import import_module
from typing import Any

from modulm_compat_vllm import tree

if __name__ != tree.NAME:
    raise ImportError(f"{__name__!r} is the tree behind `import vllm`. Import it by that name, of which there is one.")

import vllm.logger  # noqa: F401, E402  (gives logger `vllm` its handler)

__version__ = tree.version()
__version_tuple__ = tuple(int(part) if part.isdigit() else part for part in __version__.split("."))

_WHERE = {
    "CompletionOutput": "modulm.outputs",
    "LLM": "modulm.llm",
    "ModelRegistry": "modulm.plugins.models",
    "PromptType": "vllm.inputs",
    "RequestOutput": "modulm.outputs",
    "SamplingParams": "modulm.sampling_params",
    "TextPrompt": "vllm.inputs",
    "TokensPrompt": "vllm.inputs",
}
_ABSENT = (
    *("AsyncEngineArgs", "AsyncLLMEngine", "EngineArgs", "LLMEngine", "PoolingParams", "initialize_ray_cluster"),
    *("ClassificationOutput", "ClassificationRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput"),
    *("PoolingOutput", "PoolingRequestOutput", "ScoringOutput", "ScoringRequestOutput"),
)
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        found = globals()[name] = getattr(import_module(_WHERE[name]), name)
        return found
    if name in _ABSENT:
        raise AttributeError(
            f"vllm.{name} is vLLM's, but modulm-compat-vllm does not offer it. It offers: {', '.join(_WHERE)}."
        )
    raise AttributeError(f"module 'vllm' (modulm-compat-vllm) has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
