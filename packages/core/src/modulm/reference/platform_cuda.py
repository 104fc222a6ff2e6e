"""NVIDIA GPUs as a platform, through torch. `probe` looks for the driver's files first: others pay nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from modulm.interfaces.platform import Platform
from modulm.interfaces.support import Accepted, Rejected, Support

if TYPE_CHECKING:
    import torch

_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg", "C:/Windows/System32/nvcuda.dll")
_BFLOAT16_SINCE = (8, 0)


def probe(files: tuple[str, ...] = _DRIVER_FILES) -> Support:
    """Say whether torch can use a GPU here. Imports torch only where one of the driver's files exists."""
    if not any(Path(file).exists() for file in files):
        return Rejected("no NVIDIA driver is installed")
    import torch

    if torch.version.cuda is None:
        return Rejected("torch is installed without CUDA")
    if not torch.cuda.is_available():
        return Rejected("torch sees no GPU")
    return Accepted(torch.cuda.get_device_name(0))


class CUDAPlatform(Platform):
    """NVIDIA GPUs, one per local rank."""

    name: ClassVar[str] = "cuda"
    device_type: ClassVar[str] = "cuda"
    supported_dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    attention_backends: ClassVar[tuple[str, ...]] = ("flash_attn", "flashinfer", "triton_attn", "torch")
    kernels: ClassVar[tuple[str, ...]] = ("triton", "torch")

    def device(self, index: int = 0) -> "torch.device":
        """See base class."""
        import torch

        return torch.device("cuda", index)

    def available_memory_bytes(self, index: int = 0) -> int:
        """Return what the driver has free, without what torch keeps for itself."""
        import torch

        return torch.cuda.mem_get_info(index)[0]

    def total_memory_bytes(self, index: int = 0) -> int:
        """See base class."""
        import torch

        return torch.cuda.mem_get_info(index)[1]

    def default_dtype(self, checkpoint_dtype: str) -> str:
        """Return the checkpoint's dtype; float16 instead of bfloat16 on GPUs before Ampere, which lack it."""
        import torch

        wanted = super().default_dtype(checkpoint_dtype)
        if wanted == "bfloat16" and torch.cuda.get_device_capability(0) < _BFLOAT16_SINCE:
            return "float16"
        return wanted

    def manual_seed(self, seed: int) -> None:
        """See base class."""
        import torch

        torch.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)

    def synchronize(self) -> None:
        """See base class."""
        import torch

        torch.cuda.synchronize()
