"""GGUF checkpoints for modulm: what a file holds becomes config, tokenizer and weights; knows no devices."""
