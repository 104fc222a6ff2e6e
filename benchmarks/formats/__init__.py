"""Parts of `quantization.py`: what writes SmolLM2 in every format, and what measures one checkpoint."""
