"""Registers a resolver that finds LoRA adapters in the folder MY_LORA_FOLDER. The parser files are given by path."""

import os
from pathlib import Path

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry


class FolderResolver(LoRAResolver):
    """An adapter is a folder of that name, made for the model that is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the adapter, or None."""
        path = self.folder / lora_name
        if Path(lora_name).name != lora_name or not (path / "adapter_config.json").is_file():
            return None
        return LoRARequest(lora_name=lora_name, lora_int_id=abs(hash(lora_name)) or 1, lora_path=str(path))


def register() -> None:
    """Called once in every process."""
    folder = os.environ.get("MY_LORA_FOLDER")
    if folder:
        LoRAResolverRegistry.register_resolver("My Folder", FolderResolver(Path(folder)))
