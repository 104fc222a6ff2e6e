"""What passes between stages of a pipeline. modulm has one stage, so nothing makes any."""

from dataclasses import dataclass
from typing import Any


@dataclass
class IntermediateTensors:
    """Tensors by name."""

    tensors: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]
