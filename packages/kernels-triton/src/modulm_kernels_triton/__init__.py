"""Triton kernels for weights of few bits, on GPUs. Importing this imports neither Triton nor torch."""
