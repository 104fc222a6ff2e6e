"""dtypes by name."""

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    STR_DTYPE_TO_TORCH_DTYPE: dict[str, torch.dtype]
    TORCH_DTYPE_TO_STR_DTYPE: dict[torch.dtype, str]

_ALIASES = {"float32": "float32", "half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32"}


@cache
def _dtypes() -> "dict[str, torch.dtype]":
    import torch

    return {name: getattr(torch, kind) for name, kind in _ALIASES.items()}


def __getattr__(name: str) -> Any:
    if name == "STR_DTYPE_TO_TORCH_DTYPE":
        return _dtypes()
    if name == "TORCH_DTYPE_TO_STR_DTYPE":
        return {_dtypes()[kind]: kind for kind in ("float32", "float16", "bfloat16")}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
