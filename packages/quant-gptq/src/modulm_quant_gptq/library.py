"""Checkpoints of plain numbers -> GPTQ by gptqmodel, which the user installs for it: calibrated on a text of theirs.

Knows how the library is called, no tensors: what it writes, `scheme.py` reads.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modulm.interfaces.quantizing import Wish
from modulm_quant_gptq.rules import BITS

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

NAME = "gptqmodel"
_WINDOW, _LEAST, _MOST = 512, 32, 256
"""Tokens of a piece of text; fewest of one that still counts; most pieces."""


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    bits, size = wish.one_of("bits", BITS, 4), wish.inputs_per_scale
    text = wish.text(NAME)
    library, transformers = import_module(NAME), import_module("transformers")
    ids = transformers.AutoTokenizer.from_pretrained(checkpoint.path)(text)["input_ids"]
    pieces = [ids[start : start + _WINDOW] for start in range(0, len(ids), _WINDOW)][:_MOST]
    pieces = [piece for piece in pieces if len(piece) >= min(_LEAST, len(ids))]
    config = library.QuantizeConfig(bits=bits, group_size=size, method="gptq", format="gptq", offload_to_disk=False)
    model = library.GPTQModel.load(str(checkpoint.path), config)
    model.quantize([{"input_ids": piece, "attention_mask": [1] * len(piece)} for piece in pieces], batch_size=1)
    model.save(str(out))
    return f"{bits} bits by gptqmodel, calibrated on {sum(map(len, pieces))} tokens of {wish.calibration}"
