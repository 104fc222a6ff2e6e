"""Finds adapters as folders beside each other: `adapters/NAME/adapter_config.json`."""

import hashlib
from pathlib import Path

from modulm.interfaces.lora import LoRAResolver
from modulm.types import Adapter

FOLDER = Path("adapters")


class Folders(LoRAResolver):
    """`key` stands for the content: two adapters of one name share no cached prefix."""

    async def resolve_lora(self, base_model_name, lora_name):
        path = FOLDER / lora_name
        if Path(lora_name).name != lora_name or not (path / "adapter_config.json").exists():
            return None  # not ours: the next resolver is asked
        key = hashlib.sha256((path / "adapter_model.safetensors").read_bytes()).hexdigest()
        return Adapter(name=lora_name, key=key, path=str(path))
