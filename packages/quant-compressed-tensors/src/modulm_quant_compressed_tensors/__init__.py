"""checkpoints of compressed-tensors (LLM Compressor)."""
