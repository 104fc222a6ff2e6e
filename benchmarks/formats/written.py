"""Writes a folder of plain numbers in a format: `python -m formats.written NAME SOURCE TARGET`.

Made by the format's own library where that runs on a CPU without a GPU's help, else rounded to nearest by `modulm
quantize`. Nothing is calibrated: what a library's calibration gains is quality, not speed or memory. Knows no figures.
"""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


@dataclass(frozen=True)
class Format:
    """A row of the table.

    Attributes:
        bits: Of a weight, without scales.
        made_by: Who wrote it.
        write: Writes the checkpoint; None where the engine makes it while it loads the plain one.
        nearest: The GGUF type of as many bits, with scales for as few weights as there is.
        options: What the engine is told besides.
    """

    bits: str
    made_by: str
    write: Callable[[Path, Path], None] | None
    nearest: str
    options: dict[str, Any] = field(default_factory=dict)


def by_command(name: str, **options: Any) -> Callable[[Path, Path], None]:
    """Return what writes with `modulm quantize`."""

    def write(source: Path, target: Path) -> None:
        from modulm.cli import main

        flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        if main(["quantize", str(source), str(target), f"--format={name}", *flags]):
            raise SystemExit(f"modulm quantize --format={name} failed")

    return write


def by_transformers(config_name: str, **options: Any) -> Callable[[Path, Path], None]:
    """Return what lets transformers quantize while it loads, by the library of that configuration, and save."""

    def write(source: Path, target: Path) -> None:
        import torch
        import transformers

        if "quant_type" in options:
            import torchao.quantization

            made = {"quant_type": getattr(torchao.quantization, options["quant_type"])()}
        else:
            made = options
        config = getattr(transformers, config_name)(**made)
        load = transformers.AutoModelForCausalLM.from_pretrained
        load(source, dtype=torch.bfloat16, quantization_config=config).save_pretrained(target)

    return write


def by_compressed_tensors(groups: dict[str, Any]) -> Callable[[Path, Path], None]:
    """Return what lets compressed-tensors round to nearest by the range of each group, and pack."""

    def write(source: Path, target: Path) -> None:
        import torch
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
        for module in model.modules():
            scheme = getattr(module, "quantization_scheme", None)
            if scheme is not None and scheme.weights is not None:
                _set_scales(module, scheme.weights)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        compressor.remove_decompression_hook(model)
        model.save_pretrained(target)
        compressor.update_config(target)

    return write


def _set_scales(module: Any, args: Any) -> None:
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    weight = module.weight.detach().float()
    if args.strategy == "channel":
        parts = weight[:, None]
    elif args.strategy == "block":
        high, wide = args.block_structure
        rows, columns = weight.shape
        padded = weight.new_zeros(-(-rows // high) * high, -(-columns // wide) * wide)
        padded[:rows, :columns] = weight
        parts = padded.unflatten(0, (-1, high)).unflatten(2, (-1, wide)).transpose(1, 2).flatten(2)
    else:
        parts = weight.unflatten(1, (-1, args.group_size))
    outer = None
    if hasattr(module, "weight_global_scale"):
        outer = generate_gparam(weight.amin(), weight.amax())
        module.weight_global_scale.data.copy_(outer)
    if hasattr(module, "input_global_scale"):  # the library leaves it as memory was, until activations have been seen
        module.input_global_scale.data.fill_(1.0)
    scale, zero_point = calculate_qparams(parts.amin(-1), parts.amax(-1), args, global_scale=outer)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero_point.reshape(module.weight_zero_point.shape))


def _group(kind: str = "int", form: str | None = None, *, by_token: bool = False, **weights: Any) -> dict[str, Any]:
    one: dict[str, Any] = {"targets": ["Linear"], "weights": {"type": kind, **weights}}
    if by_token:
        one["input_activations"] = {"num_bits": 8, "type": kind, "dynamic": True, "strategy": "token"}
    return {"group_0": one | ({"format": form} if form else {})}


def _compressed(bits: str, nearest: str, groups: dict[str, Any]) -> Format:
    return Format(bits, "compressed-tensors", by_compressed_tensors(groups), nearest)


def _rounded(width: str, nearest: str, name: str, **options: Any) -> Format:
    return Format(width, "modulm quantize", by_command(name, method="rtn", **options), nearest)


def _loading(bits: str, nearest: str, name: str) -> Format:
    return Format(bits, "modulm, while loading", None, nearest, {"quantization": name})


_IN_GROUPS: dict[str, Any] = {"num_bits": 4, "strategy": "group"}
_ROWS_OF_8: dict[str, Any] = {"num_bits": 8, "strategy": "channel"}
_BLOCKS_OF_8: dict[str, Any] = {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}

FORMATS = {
    "GPTQ, groups of 32": _rounded("4", "q4_0", "gptq", group_size=32),
    "GPTQ, 2 bits, groups of 32": _rounded("2", "q4_0", "gptq", group_size=32, bits=2),
    "GPTQ, 3 bits, groups of 32": _rounded("3", "q4_0", "gptq", group_size=32, bits=3),
    "GPTQ, 8 bits, groups of 32": _rounded("8", "q8_0", "gptq", group_size=32, bits=8),
    "AWQ, groups of 32": _rounded("4", "q4_1", "awq", group_size=32),
    "compressed-tensors W4A16, groups of 64": _compressed("4", "q4_0", _group(**_IN_GROUPS, group_size=64)),
    "compressed-tensors W4A16, zero points, groups of 32": _compressed(
        "4", "q4_1", _group(**_IN_GROUPS, group_size=32, symmetric=False)
    ),
    "compressed-tensors NVFP4": _compressed("4", "q4_0", {"NVFP4": ["Linear"]}),
    "compressed-tensors MXFP4": _compressed("4", "q4_0", {"MXFP4A16": ["Linear"]}),
    "bitsandbytes NF4": Format(
        "4", "bitsandbytes", by_transformers("BitsAndBytesConfig", load_in_4bit=True, bnb_4bit_quant_type="nf4"), "q4_0"
    ),
    "bitsandbytes NF4, scales of two levels": Format("4", "bitsandbytes", by_command("nf4"), "q4_0"),
    "bitsandbytes FP4, scales of two levels": Format("4", "bitsandbytes", by_command("fp4"), "q4_0"),
    "ModelOpt NVFP4": _loading("4", "q4_0", "nvfp4_per_token"),
    "bitsandbytes LLM.int8": Format(
        "8", "bitsandbytes", by_transformers("BitsAndBytesConfig", load_in_8bit=True), "q8_0"
    ),
    "torchao int8, weights only": Format(
        "8", "torchao", by_transformers("TorchAoConfig", quant_type="Int8WeightOnlyConfig"), "q8_0"
    ),
    "torchao int8, W8A8": Format(
        "8", "torchao", by_transformers("TorchAoConfig", quant_type="Int8DynamicActivationInt8WeightConfig"), "q8_0"
    ),
    "compressed-tensors W8A16, groups of 32": _compressed(
        "8", "q8_0", _group(num_bits=8, strategy="group", group_size=32)
    ),
    "compressed-tensors W8A8": _compressed("8", "q8_0", _group("int", "int-quantized", by_token=True, **_ROWS_OF_8)),
    "compressed-tensors FP8, by row": _compressed(
        "8", "q8_0", _group("float", "float-quantized", by_token=True, **_ROWS_OF_8)
    ),
    "compressed-tensors FP8, blocks of 128": _compressed("8", "q8_0", _group("float", **_BLOCKS_OF_8)),
    "compressed-tensors MXFP8": _compressed("8", "q8_0", {"MXFP8A16": ["Linear"]}),
    "FP8 per tensor": _loading("8", "q8_0", "fp8_per_tensor"),
    "FP8 per channel": _loading("8", "q8_0", "fp8_per_channel"),
    "int8 per channel": _loading("8", "q8_0", "int8_per_channel_weight_only"),
}
"""Every format that has a package, by the name in the table."""


def main() -> None:
    """Write one; run in a process of its own for the memory and the imports that it takes."""
    name, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    write = FORMATS[name].write
    assert write is not None
    write(source, target)
    for file in TOKENIZER:
        if (source / file).exists() and not (target / file).exists():
            shutil.copy(source / file, target)


if __name__ == "__main__":
    main()
