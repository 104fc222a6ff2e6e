"""The processor as a platform: always there. Imports torch only inside functions that need it."""

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from modulm.interfaces.platform import Platform
from modulm.interfaces.support import Accepted, Support
from modulm.reference.host_memory import available_bytes, total_bytes

if TYPE_CHECKING:
    import torch

    from modulm.config import EngineConfig

_TOKENS_PER_STEP = 512

# What makes torch's matrix product in 16 bits at least as fast as in 32. AVX512-BF16 alone does not: one row times
# 2048 x 2048 took 6.8 ms in bfloat16 and 0.4 ms in float32 (AMD EPYC, torch 2.13); without it, 1-2 GFLOP/s at any size.
_X86 = {"bfloat16": {"amx_bf16"}, "float16": {"amx_fp16"}}
_ARM = {"bfloat16": {"bf16"}, "float16": {"asimdhp"}}
_CPUINFO = Path("/proc/cpuinfo")


def probe() -> Support:
    """Say whether this platform can serve here: it always can."""
    return Accepted("a processor is always there")


class CPUPlatform(Platform):
    """One device, the processor with the memory this process may use."""

    name: ClassVar[str] = "cpu"
    device_type: ClassVar[str] = "cpu"
    supported_dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    attention_backends: ClassVar[tuple[str, ...]] = ("cpu_attn", "torch")
    kernels: ClassVar[tuple[str, ...]] = ("cpu", "torch")

    def __init__(self) -> None:
        # torch's OpenMP reads this once, when torch is imported. Threads that spin while they wait made a step 100
        # times slower beside one other busy process on two cores (18 s a token instead of 0.15).
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    def device(self, index: int = 0) -> "torch.device":
        """See base class; every rank has the same one."""
        import torch

        return torch.device("cpu")

    def device_name(self, index: int = 0) -> str:
        """See base class; asks no torch."""
        return "cpu"

    def available_memory_bytes(self, index: int = 0) -> int:
        """Return what the system and the process's control groups leave."""
        return available_bytes()

    def total_memory_bytes(self, index: int = 0) -> int:
        """Return the machine's memory, or the control groups' limit where that is lower."""
        return total_bytes()

    def default_dtype(self, checkpoint_dtype: str) -> str:
        """Return the checkpoint's dtype, or float32 where the processor is slow in 16 bits."""
        wanted = super().default_dtype(checkpoint_dtype)
        return wanted if wanted == "float32" or is_fast_in(wanted, platform.machine(), set(cpu_flags())) else "float32"

    def check_and_update_config(self, config: "EngineConfig") -> None:
        """Leave a step few tokens: more make it no faster here, while buffers grow and other sequences wait."""
        if config.max_num_batched_tokens is None and config.enable_chunked_prefill:
            config.max_num_batched_tokens = _TOKENS_PER_STEP

    def manual_seed(self, seed: int) -> None:
        """See base class."""
        import torch

        torch.manual_seed(seed)


def is_fast_in(dtype: str, machine: str, flags: set[str]) -> bool:
    """Say whether torch multiplies in `dtype` no slower than in float32.

    Args:
        dtype: "bfloat16" or "float16".
        machine: As `platform.machine()` has it.
        flags: The processor's features; on Arm systems that do not tell, an empty set counts as a recent one.
    """
    if machine.lower() in ("arm64", "aarch64"):
        return not flags or bool(_ARM[dtype] & flags)
    return bool(_X86[dtype] & flags)


def cpu_flags(file: Path = _CPUINFO) -> list[str]:
    """Return the first processor's features under Linux's names; empty where the system does not tell."""
    return cpuinfo("flags", "Features", file=file).split()


def cpuinfo(*keys: str, file: Path = _CPUINFO) -> str:
    """Return the first value that stands under one of `keys` in Linux's account of the processors, or ""."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            pairs = (line.partition(":") for line in lines)
            return next((value.strip() for key, _, value in pairs if key.strip() in keys), "")
    except OSError:
        return ""
