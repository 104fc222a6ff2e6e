"""LoRA resolvers: objects that find an adapter by name, kept in modulm's registry, family `modulm.lora_resolvers`."""

from abc import ABC, abstractmethod
from collections.abc import Set

from vllm.lora.request import LoRARequest


class LoRAResolver(ABC):
    """Asked in registration order until one finds the adapter."""

    @abstractmethod
    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the adapter, or None for "not mine"."""


class _LoRAResolverRegistry:
    """The resolvers that were registered under vLLM's names in this process."""

    def register_resolver(self, resolver_name: str, resolver: LoRAResolver) -> None:
        """Add a resolver; one of the same name is replaced, with a warning."""
        from modulm_compat_vllm.lora import register

        register(resolver_name, resolver)

    def get_supported_resolvers(self) -> Set[str]:
        """Return their names."""
        from modulm_compat_vllm.lora import registered

        return registered().keys()

    def get_resolver(self, resolver_name: str) -> LoRAResolver:
        """Return one. Raises `KeyError` for a name that is not among them."""
        from modulm_compat_vllm.lora import registered

        found = registered()
        if resolver_name not in found:
            there = ", ".join(found) or "none"
            raise KeyError(f"LoRA resolver named '{resolver_name}' was not found. Available resolvers: {there}")
        return found[resolver_name]


LoRAResolverRegistry = _LoRAResolverRegistry()
