"""LoRA resolvers written for vLLM in modulm's registry: objects there, classes here, and adapters with a key.

Nothing is kept but in the registry, so that what a failing plugin registered goes with all the rest of it.
"""

import hashlib
from pathlib import Path
from typing import ClassVar

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver

from modulm.interfaces import lora
from modulm.log import logger
from modulm.plugins.registry import registry
from modulm.types import Adapter
from modulm_compat_vllm.stand_in import stand_in

_FAMILY = "modulm.lora_resolvers"
_log = logger("compat_vllm")


class ResolverAdapter(lora.LoRAResolver):
    """Asks a resolver of vLLM's kind; derived from for each."""

    resolver: ClassVar[LoRAResolver]

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Adapter | None:
        """See base class."""
        found = await self.resolver.resolve_lora(base_model_name, lora_name)
        return None if found is None else as_adapter(found)


def register(name: str, resolver: LoRAResolver) -> None:
    """Register a resolver, in place of one of the same name."""
    if not isinstance(resolver, LoRAResolver):
        raise TypeError(
            f"LoRA resolver {name!r} is {resolver!r}, but must be an object whose class derives from "
            "vllm.lora.resolver.LoRAResolver. Register such an object."
        )
    taken = name in registry(_FAMILY)
    if taken:
        _log.warning("LoRA resolver %r is registered already and is replaced by %r.", name, resolver)
    adapter = stand_in(ResolverAdapter, type(resolver), resolver=resolver)
    registry(_FAMILY).register(name, adapter, override=taken)


def registered() -> dict[str, LoRAResolver]:
    """Return the resolvers of vLLM's kind, by name, in registration order."""
    held = registry(_FAMILY).registrations()
    found = {name: registration.target for name, registration in held.items()}
    return {
        name: target.resolver
        for name, target in found.items()
        if isinstance(target, type) and issubclass(target, ResolverAdapter)
    }


def as_adapter(request: LoRARequest) -> Adapter:
    """Return modulm's account of an adapter. Its key changes with its files, so that no cache confuses two states."""
    return Adapter(name=request.lora_name, key=_key(request.lora_path), path=request.lora_path)


def _key(path: str) -> str:
    digest = hashlib.blake2b(path.encode(), digest_size=16)
    folder = Path(path)
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        state = file.stat()
        digest.update(f"\0{file.name}\0{state.st_size}\0{state.st_mtime_ns}".encode())
    return digest.hexdigest()
