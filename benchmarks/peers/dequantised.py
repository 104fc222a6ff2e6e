"""Write a GGUF model of the Llama family as a bfloat16 safetensors folder: `python -m peers.dequantised GGUF FOLDER`.

transformers reads the file but refuses to save a model that it read from GGUF, so the weights move to a plain model.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

NOT_OURS = ("quantization_config", "_name_or_path", "transformers_version", "dtype", "torch_dtype")


def main() -> None:
    """Read, copy, save model and tokenizer."""
    source, target = map(Path, sys.argv[1:])
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    values = {name: value for name, value in read.config.to_dict().items() if name not in NOT_OURS}
    model = LlamaForCausalLM(LlamaConfig(**values))
    model.load_state_dict(read.state_dict(), strict=True)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    main()
