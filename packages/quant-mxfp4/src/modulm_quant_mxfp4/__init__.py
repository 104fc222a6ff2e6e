"""MXFP4 checkpoints, as gpt-oss has them."""
