"""Makes the file beside it: layers that nvidia-modelopt quantized and exported, and what it decodes them to itself.

Run by hand, with nvidia-modelopt 0.47.0, transformers 5.24.0 and torch 2.13.0 on the CPU: `python make.py OUT`. For
each algorithm a small Llama is quantized; one or two of its layers are kept, with the declarations of the export.
"""

import copy
import json
import sys
import tempfile
from pathlib import Path

import modelopt
import modelopt.torch.quantization as mtq
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file

CONFIGS = {
    "FP8_DEFAULT_CFG": "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN_CFG": "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG": "FP8_PB_WO",
    "MXFP8_DEFAULT_CFG": "MXFP8",
    "NVFP4_DEFAULT_CFG": "NVFP4",
    "W4A16_NVFP4_CFG": "W4A16_NVFP4",
    "W4A8_NVFP4_FP8_CFG": "W4A8_NVFP4_FP8",
    "MXFP4_DEFAULT_CFG": "MXFP4",
    "W4A8_MXFP4_FP8_CFG": "W4A8_MXFP4_FP8",
}

KEPT = "model.layers.0.self_attn.k_proj"
LARGE = "model.layers.0.mlp.up_proj"
"""Kept too for blocks of 128 rows."""
GROUPS = {"MXFP8": 32, "NVFP4": 16, "W4A16_NVFP4": 16, "W4A8_NVFP4_FP8": 32, "MXFP4": 32, "W4A8_MXFP4_FP8": 32}


def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=160, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, architectures=["LlamaForCausalLM"], tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def calibrate(quantized):
    generator = torch.Generator().manual_seed(0)
    quantized(torch.randint(0, 64, (2, 32), generator=generator))


def made(config):
    """Return an export's declarations by file, and its tensors."""
    quantized = model()
    mtq.quantize(quantized, copy.deepcopy(getattr(mtq, config)), calibrate)
    with tempfile.TemporaryDirectory() as folder:
        export_hf_checkpoint(quantized, export_dir=folder)
        declared = json.loads((Path(folder) / "config.json").read_text())["quantization_config"]
        other = json.loads((Path(folder) / "hf_quant_config.json").read_text())
        tensors = load_file(Path(folder) / "model.safetensors")
    return {"config.json": declared, "hf_quant_config.json": other}, tensors


def worth(name, module, tensors):
    """Return what modelopt's own decoder says that a layer's weight is, float32."""
    weight, scale = tensors[f"{module}.weight"], tensors[f"{module}.weight_scale"]
    options = {"dtype": torch.float32, "scale": scale}
    if name in GROUPS:
        options["block_sizes"] = {-1: GROUPS[name]}
    if "NVFP4" in name:
        options["double_scale"] = tensors[f"{module}.weight_scale_2"]
    if name == "FP8_PER_CHANNEL_PER_TOKEN":
        options |= {"scale": scale[:, None], "block_sizes": {-1: weight.shape[1]}}
    if scale.ndim == 4:
        options |= {"scale": scale[:, 0, :, 0], "block_sizes": {-1: 128, -2: 128}}
    kinds = {"NVFP4": NVFP4QTensor, "MXFP4": MXFP4QTensor, "MXFP8": MXFP8QTensor}
    kind = next((kind for word, kind in kinds.items() if word in name), FP8QTensor)
    shape = torch.Size((len(weight), weight.shape[1] * (2 if "FP4" in name else 1)))
    return kind(shape, torch.float32, weight).dequantize(**options)


def main(out):
    kept, declarations = {}, {}
    for config, name in CONFIGS.items():
        declarations[name], tensors = made(config)
        for module in (KEPT, LARGE) if name == "FP8_PB_WO" else (KEPT,):
            kept |= {f"{name}:{key}": tensor for key, tensor in tensors.items() if key.startswith(f"{module}.")}
            kept[f"{name}:{module}.worth"] = worth(name, module, tensors).contiguous()
    about = {"modelopt": modelopt.__version__, "torch": torch.__version__, "declared": json.dumps(declarations)}
    save_file(kept, out, metadata=about)


main(sys.argv[1])
