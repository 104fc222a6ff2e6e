"""Checkpoints of plain numbers -> NF4 or FP4, by bitsandbytes and transformers, which the user installs for it."""

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modulm.errors import ConfigError
from modulm.interfaces.quantizing import Wish

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

FORMATS = ("nf4", "fp4")
_NEEDED = ("torch", "transformers", "accelerate", "bitsandbytes")


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    wish.takes("method")
    wish.one_of("method", ("bitsandbytes",), "bitsandbytes")
    if any(importlib.util.find_spec(library) is None for library in _NEEDED):
        raise ConfigError(
            f"--format={wish.format!r} is made by bitsandbytes: pip install transformers accelerate bitsandbytes."
        )
    transformers = import_module("transformers")  # the user's, not one that this package is made with
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=wish.format, bnb_4bit_use_double_quant=True
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.path, quantization_config=config, dtype="auto")
    model.save_pretrained(out)
    return "by bitsandbytes, blocks of 64"
