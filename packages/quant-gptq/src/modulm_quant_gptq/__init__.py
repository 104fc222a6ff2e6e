"""GPTQ checkpoints of 2, 3, 4 and 8 bits."""
