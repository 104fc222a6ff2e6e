"""LoRA resolvers that are wrong in one way each: adapters are folders in one place."""

import asyncio
import tempfile
import zlib
from pathlib import Path

from contract import Contract

from modulm.interfaces.lora import LoRAResolver
from modulm.types import Adapter
from modulm_testkit.lora import LoRAResolverConformance

_PLACE = tempfile.TemporaryDirectory(prefix="modulm-mutants-")
ROOT = Path(_PLACE.name) / "adapters"
for name in ("french", "german"):
    (ROOT / name).mkdir(parents=True)
    (ROOT / name / "adapter_config.json").write_text("{}")
(ROOT.parent / "secret").mkdir()


class Folders(LoRAResolver):
    """Knows the folders of one place by their names."""

    async def resolve_lora(self, base_model_name, lora_name):
        known = {folder.name: folder for folder in ROOT.iterdir()}
        await asyncio.sleep(0)
        return self.adapter(lora_name, known[lora_name]) if lora_name in known else None

    def adapter(self, name, folder):
        return Adapter(name=name, key=f"{zlib.crc32(name.encode()):08x}", path=str(folder))


lora = Contract(
    "lora", LoRAResolverConformance, "resolver", Folders, wrap=lambda made: made(), adapters=("french", "german")
)
mutant = lora.mutant


@mutant("test_finds_adapters")
class RenamesAdapters(Folders):
    """The adapter has the folder's path for a name."""

    def adapter(self, name, folder):
        found = super().adapter(name, folder)
        return Adapter(name=str(folder), key=found.key, path=found.path)


@mutant("test_leaves_unknown_names_to_others")
class TakesTheNearest(Folders):
    """An unknown word gives the first adapter."""

    async def resolve_lora(self, base_model_name, lora_name):
        found = await super().resolve_lora(base_model_name, lora_name)
        return self.adapter(lora_name, ROOT / "french") if lora_name == "no-such-adapter" else found


@mutant("test_hostile_names_find_nothing")
class JoinsNames(Folders):
    """A name is joined to the place's path."""

    async def resolve_lora(self, base_model_name, lora_name):
        folder = ROOT / lora_name
        return self.adapter(lora_name, folder) if folder.is_dir() else None


@mutant("test_keys_stand_for_contents")
class DrawsKeys(Folders):
    """Every answer has a new key; the answers of one moment share it."""

    count = 0

    def adapter(self, name, folder):
        import time

        return Adapter(name=name, key=str(int(time.monotonic() * 1e9)), path=str(folder))


@mutant("test_answers_many_at_once")
class RefusesWhileBusy(Folders):
    """A second question raises while the first is open."""

    busy = False

    async def resolve_lora(self, base_model_name, lora_name):
        if self.busy:
            raise RuntimeError("busy")
        self.busy = True
        try:
            return await super().resolve_lora(base_model_name, lora_name)
        finally:
            self.busy = False
