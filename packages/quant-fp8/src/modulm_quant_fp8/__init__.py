"""FP8 checkpoints (fp8, fbgemm_fp8), and 16-bit ones made FP8 while they load."""
