"""The processor, with a limit on memory: for several engines on one machine."""

import os

from modulm.interfaces.platform import Platform

LIMIT_BYTES = 2 << 30


def probe() -> str | None:
    """The entry point: where the class is, or None for "not here". Imports nothing heavy."""
    return "your_package.platform.LimitedCPU" if hasattr(os, "sched_getaffinity") else None


class LimitedCPU(Platform):
    """`device="limited"` asks for it by name; as the only active platform plugin it is chosen by itself."""

    name = "limited"
    device_type = "cpu"
    attention_backends = ("torch",)
    kernels = ("torch",)

    def device(self, index=0):
        import torch

        return torch.device("cpu")

    def manual_seed(self, seed):
        import torch

        torch.manual_seed(seed)

    def available_memory_bytes(self, index=0):
        return LIMIT_BYTES

    def total_memory_bytes(self, index=0):
        return LIMIT_BYTES
