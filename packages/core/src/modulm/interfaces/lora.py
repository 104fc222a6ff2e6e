"""LoRA resolvers (family `modulm.lora_resolvers`): find an adapter by name when a request asks for an unknown one.

They can be declared and registered; nothing in core asks them yet, as no adapter can be loaded.
"""

from abc import ABC, abstractmethod

from modulm.types import Adapter


class LoRAResolver(ABC):
    """To be asked in the front end, in registration order, until one finds the adapter."""

    @abstractmethod
    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Adapter | None:
        """Return the adapter, or None for "not mine"; errors count as None and the next resolver is asked."""
