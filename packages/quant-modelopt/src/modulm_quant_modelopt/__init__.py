"""checkpoints of NVIDIA ModelOpt: FP8, NVFP4, MXFP8."""
