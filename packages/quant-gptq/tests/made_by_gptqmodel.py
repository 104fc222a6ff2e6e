"""Make the fixtures of this package's tests with GPTQModel 7.7.0 (Apache-2.0, CPU): python made_by_gptqmodel.py OUT.

One decoder layer of a random Llama in several variants. Each becomes one safetensors file: the quantized tensors as the
library wrote them, `config` in its metadata, and its own dequantisation of two layers as "expected.<module>".
Run once, in an environment of its own: the tests need neither the library nor this script.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "GPTQMODEL_CPU_WORKERS": "3"}

import torch
from gptqmodel import GPTQModel, QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model_dequant import _correct_gptq_v1_qzeros, dequantize_model, unpack_cols, unpack_rows
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 256, "tie_word_embeddings": True, "initializer_range": 0.3,
}  # fmt: skip
PLAIN = {"sym": True, "desc_act": False, "method": "gptq", "format": "gptq"}
EIGHT = {"bits": 8, "group_size": 64}
VARIANTS = {
    "gptq4": PLAIN | {"bits": 4, "group_size": 32},
    "gptq4-act-order": PLAIN | {"bits": 4, "group_size": 16, "sym": False, "desc_act": True, "format": "gptq_v2"},
    "gptq3-act-order": PLAIN | {"bits": 3, "group_size": 32, "sym": False, "desc_act": True},
    "gptq2": PLAIN | {"bits": 2, "group_size": 16, "sym": False, "format": "gptq_v2"},
    "gptq8-whole-rows": PLAIN | {"bits": 8, "group_size": -1, "act_group_aware": False},
    "gptq-dynamic": PLAIN | {"bits": 4, "group_size": 32, "dynamic": {r"-:.*\.o_proj": {}, r"+:.*\.mlp\..*": EIGHT}},
    "awq": PLAIN | {"bits": 4, "group_size": 32, "sym": False, "method": "awq", "format": "gemm"},
    "awq-whole-rows": PLAIN | {"bits": 4, "group_size": -1, "sym": False, "method": "awq", "format": "gemm"},
}  # fmt: skip
LEAVES, BITS = ("qweight", "qzeros", "scales", "g_idx"), {"self_attn.k_proj": 4, "mlp.down_proj": 8}
ROWS = 16
SHOWN = ("self_attn.k_proj", "mlp.down_proj")


def main(out: Path, only: list[str]) -> None:
    """Write all variants, or those that are named."""
    work = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=0, eos_token_id=1)).half().save_pretrained(work / "plain")
    letters = {chr(256 + index): index for index in range(SIZES["vocab_size"])}
    Tokenizer(models.BPE(letters, [])).save(str(work / "plain" / "tokenizer.json"))
    (work / "plain" / "tokenizer_config.json").write_text('{"eos_token": "Ā"}')
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 320, (16, 48), generator=generator).tolist()
    for name in only or VARIANTS:
        config = QuantizeConfig(**VARIANTS[name], device="cpu", offload_to_disk=False)
        model = GPTQModel.load(str(work / "plain"), config)
        model.quantize([{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids], batch_size=1)
        model.save(str(work / name))
        keep(work, name, out, dequantised(work, name))


def dequantised(work: Path, name: str) -> dict[str, torch.Tensor]:
    """Return the layers SHOWN as plain numbers, by the library."""
    if "dynamic" in VARIANTS[name]:  # which its converter of whole checkpoints leaves out
        found = load_file(next((work / name).glob("*.safetensors")))
        parts = {m: {leaf: found[f"model.layers.0.{m}.{leaf}"] for leaf in LEAVES} for m in SHOWN}
        return {m: by_hand(parts[m], BITS[m]) for m in SHOWN}
    if VARIANTS[name]["method"] == "awq":  # whose converter leaves columns in the order of its kernel
        found = load_file(next((work / name).glob("*.safetensors")))
        parts = {m: [found[f"model.layers.0.{m}.{leaf}"] for leaf in ("qweight", "qzeros", "scales")] for m in SHOWN}
        sizes = {m: len(weight) // len(scales) for m, (weight, _, scales) in parts.items()}
        return {m: dequantize_gemm(w, z, s.float(), 4, sizes[m]).T for m, (w, z, s) in parts.items()}
    dequantize_model(work / name, work / f"{name}-plain", target_dtype=torch.float32, device="cpu")
    plain = {}
    for file in (work / f"{name}-plain").glob("*.safetensors"):
        plain |= load_file(file)
    return {module: plain[f"model.layers.0.{module}.weight"].float() for module in SHOWN}


def by_hand(part: dict[str, torch.Tensor], bits: int) -> torch.Tensor:
    """Return one layer as plain numbers, with the functions of that converter."""
    zeros = unpack_cols(_correct_gptq_v1_qzeros(part["qzeros"], bits), bits).float()
    index = part["g_idx"].long()
    return ((unpack_rows(part["qweight"], bits).float() - zeros[index]) * part["scales"].float()[index]).T


def keep(work: Path, name: str, out: Path, shown: dict[str, torch.Tensor]) -> None:
    """Write one fixture."""
    made = {}
    for file in (work / name).glob("*.safetensors"):
        made |= load_file(file)
    tensors = {
        key: tensor.contiguous() for key, tensor in made.items() if ".layers.0." in key and "layernorm" not in key
    }
    tensors |= {f"expected.model.layers.0.{module}": matrix[:ROWS].contiguous() for module, matrix in shown.items()}
    config = json.loads((work / name / "config.json").read_text("utf-8"))
    save_file(tensors, out / f"{name}.safetensors", {"config": json.dumps(config)})


main(Path(sys.argv[1]), sys.argv[2:])
