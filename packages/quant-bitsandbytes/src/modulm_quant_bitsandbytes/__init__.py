"""bitsandbytes checkpoints: NF4, FP4, LLM.int8, and 16-bit ones quantized while they load."""
