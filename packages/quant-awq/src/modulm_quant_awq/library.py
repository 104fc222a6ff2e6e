"""Checkpoints of plain numbers -> AWQ's layout by auto-round, which the user installs for it: tuned on a text.

Knows how the library is called, no tensors: what it writes, `scheme.py` reads.
"""

import json
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from modulm.interfaces.quantizing import Wish

if TYPE_CHECKING:
    from modulm.interfaces.checkpoint import Checkpoint

NAME = "auto-round"
_MODULE = "auto_round"
_WINDOW, _MOST = 512, 128
"""Tokens of a piece of text; most pieces."""


def quantize(checkpoint: "Checkpoint", out: Path, wish: Wish) -> str:
    """Write the checkpoint; see `QuantizationScheme.quantize`."""
    wish.one_of("bits", (4,), 4)
    size = wish.inputs_per_scale
    text = wish.text(NAME)
    library, transformers = import_module(_MODULE), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype="auto")
    ids = tokenizer(text)["input_ids"]
    window = min(_WINDOW, len(ids))
    pieces = [ids[start : start + window] for start in range(0, len(ids) - window + 1, window)][:_MOST]
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "calibration.jsonl"
        texts.write_text("".join(json.dumps({"text": tokenizer.decode(piece)}) + "\n" for piece in pieces))
        tuned = library.AutoRound(
            model, tokenizer, bits=4, group_size=size, sym=False, dataset=str(texts), seqlen=window // 2,
            nsamples=len(pieces), enable_torch_compile=False,  # which takes longer than it saves
        )  # fmt: skip
        tuned.quantize_and_save(f"{folder}/made", format="auto_awq")
        (config,) = Path(folder).glob("made/**/config.json")  # the library may add a folder of the model's name
        shutil.copytree(config.parent, out, dirs_exist_ok=True)
    return f"4 bits by auto-round, tuned on {len(pieces)} pieces of {wish.calibration}"
