"""`modulm quantize`: writes a checkpoint of plain numbers again in fewer bits.

int8 and fp8 are rounded to nearest here, row by row, with nothing calibrated, and written as compressed-tensors has it;
nf4 and fp4 are made by bitsandbytes. What takes calibration is left to the libraries that do it. Heavy imports wait
until a format is chosen.
"""

import argparse
import importlib.util
import json
import shutil
import struct
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modulm.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import numpy as np

    from modulm.interfaces.checkpoint import Checkpoint

HELP = "write a checkpoint in fewer bits: int8 and fp8 by rounding to nearest, nf4 and fp4 by bitsandbytes"
_ROUNDED = {"int8": ("int", "int-quantized", "I8", 127.0), "fp8": ("float", "float-quantized", "F8_E4M3", 448.0)}
"""Format -> type, compressed-tensors' name, safetensors' name, largest number."""
_BITSANDBYTES = ("nf4", "fp4")
_CALIBRATED = {
    "gptq": "gptqmodel (pip install gptqmodel) or auto-round (pip install auto-round)",
    "awq": "gptqmodel (pip install gptqmodel) or auto-round (pip install auto-round)",
    "w4a16": "LLM Compressor (pip install llmcompressor)",
    "gguf": "llama.cpp (convert_hf_to_gguf.py, then llama-quantize)",
}
_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32"}
_OTHERS = ("vision", "visual", "audio", "multi_modal_projector")
_ROWS_AT_ONCE = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", help="folder of a checkpoint in plain numbers")
    parser.add_argument("out", type=Path, help="folder to write; it must not exist, or be empty")
    parser.add_argument("--format", required=True, help=f"{', '.join((*_ROUNDED, *_BITSANDBYTES))}")


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint, and say how it was made."""
    from modulm.checkpoints.location import locate

    if args.format in _CALIBRATED:
        raise ConfigError(
            f"--format={args.format!r} takes calibration, which modulm does not do. It is made by "
            f"{_CALIBRATED[args.format]}, and what it writes runs here. Written here: "
            f"{', '.join((*_ROUNDED, *_BITSANDBYTES))}."
        )
    if args.format not in (*_ROUNDED, *_BITSANDBYTES):
        raise ConfigError(f"--format={args.format!r} is unknown. There are: {', '.join((*_ROUNDED, *_BITSANDBYTES))}.")
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise ConfigError(f"{str(args.out)!r} is there already and not an empty folder. Name another.")
    folder = locate(args.model)
    checkpoint = _plain(folder)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.format in _BITSANDBYTES:
        _by_bitsandbytes(folder, args.out, args.format)
        how = "by bitsandbytes, blocks of 64"
    else:
        count = _Rounded(checkpoint, args.format).write(args.out)
        how = f"{count} layers rounded to nearest, a scale per row, nothing calibrated"
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("model") and not (args.out / file.name).exists():
            shutil.copy(file, args.out)
    print(f"{args.out}: {args.format}, {how}.")
    return 0


def _plain(folder: Path) -> "Checkpoint":
    from modulm.checkpoints.safetensors import SafetensorsCheckpoint
    from modulm.interfaces.quantization_config import quantization_config

    answer = SafetensorsCheckpoint.matches(folder)
    if not answer:
        raise CheckpointError(f"{folder} cannot be quantized: {getattr(answer, 'reason', answer)}.")
    checkpoint = SafetensorsCheckpoint.open(folder)
    declared = quantization_config(checkpoint)
    if declared.keys:
        raise CheckpointError(f"{folder} is quantized already ({declared.method}). Start from its plain checkpoint.")
    return checkpoint


class _Rounded:
    """Rounds the layers that `is_inner` means; all other tensors stay as they are."""

    def __init__(self, checkpoint: "Checkpoint", name: str) -> None:
        self._checkpoint = checkpoint
        self._kind, self._format, self._stored, self._largest = _ROUNDED[name]

    def write(self, out: Path) -> int:
        """Write model.safetensors and config.json; return the number of layers that were rounded."""
        rounded, ignored = self._layers()
        if not rounded:
            raise CheckpointError(f"{self._checkpoint.path} has no layer that could be rounded.")
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in self._checkpoint.tensor_names():
            info = self._checkpoint.info(name)
            parts = [(name, _FLOATS.get(info.dtype), info.shape, info.size_bytes)]
            if name in rounded:
                rows, columns = info.shape
                parts = [
                    (name, self._stored, info.shape, rows * columns),
                    (f"{name}_scale", "F32", (rows, 1), 4 * rows),
                ]
            for part, dtype, shape, size in parts:
                if dtype is None:
                    raise CheckpointError(
                        f"Tensor {part!r} in {self._checkpoint.path} is {info.dtype}: not a plain one."
                    )
                header[part] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end := end + size]}
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        with (out / "model.safetensors").open("wb") as stream:
            stream.write(struct.pack("<Q", len(raw)) + raw)
            for name in self._checkpoint.tensor_names():
                array = self._checkpoint.tensor(name)
                for data in self._rounded(array, name) if name in rounded else (array,):
                    stream.write(data.tobytes())
                self._checkpoint.release()
        config = self._checkpoint.config() | {"quantization_config": self._declaration(ignored)}
        (out / "config.json").write_text(json.dumps(config, indent=2))
        return len(rounded)

    def _layers(self) -> tuple[set[str], list[str]]:
        """Return the names of the weights that are rounded, and the layers that are not."""
        from modulm.interfaces.quantization import is_inner

        rounded, ignored = set(), []
        for name in self._checkpoint.tensor_names():
            module, _, last = name.rpartition(".")
            if last != "weight" or len(self._checkpoint.info(name).shape) != 2 or "embed" in module:
                continue
            if is_inner(module) and not any(other in name for other in _OTHERS):
                rounded.add(name)
            else:
                ignored.append(module)
        return rounded, sorted(ignored)

    def _rounded(self, numbers: "np.ndarray", name: str) -> tuple["np.ndarray", "np.ndarray"]:
        """Return codes and scales [rows, 1]."""
        import ml_dtypes
        import numpy as np

        codes = np.empty(numbers.shape, np.int8 if self._kind == "int" else ml_dtypes.float8_e4m3fn)
        scales = np.empty((len(numbers), 1), np.float32)
        for start in range(0, len(numbers), _ROWS_AT_ONCE):  # few at once: no second copy in float32
            part = slice(start, start + _ROWS_AT_ONCE)
            wide = numbers[part].astype(np.float32)
            largest = np.abs(wide).max(axis=1, keepdims=True, initial=0)
            if not np.isfinite(largest).all():
                raise CheckpointError(
                    f"Tensor {name!r} in {self._checkpoint.path} holds a number that is NaN or infinite."
                )
            scales[part] = np.where(largest > 0, largest / np.float32(self._largest), 1)
            wide /= scales[part]
            codes[part] = np.rint(wide) if self._kind == "int" else np.clip(wide, -self._largest, self._largest)
        return codes, scales

    def _declaration(self, ignored: list[str]) -> dict[str, Any]:
        weights = {"num_bits": 8, "type": self._kind, "symmetric": True, "strategy": "channel", "dynamic": False}
        inputs = {**weights, "strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": self._format}
        common = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ignored}
        return {**common, "format": self._format, "config_groups": {"group_0": group}}


def _by_bitsandbytes(folder: Path, out: Path, kind: str) -> None:
    for library in ("torch", "transformers", "accelerate", "bitsandbytes"):
        if importlib.util.find_spec(library) is None:
            raise ConfigError(
                f"--format={kind!r} is made by bitsandbytes: pip install transformers accelerate bitsandbytes."
            )
    transformers = import_module("transformers")  # the user's, not one that core is made with
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=kind, bnb_4bit_use_double_quant=True
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype="auto")
    model.save_pretrained(out)
