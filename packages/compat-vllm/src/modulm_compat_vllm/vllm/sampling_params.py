"""Sampling parameters: modulm's own, which have vLLM's names."""

from modulm.sampling_params import RequestOutputKind, SamplingParams

__all__ = ["RequestOutputKind", "SamplingParams"]
