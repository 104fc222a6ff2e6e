"""NVIDIA's GPUs as a platform of vLLM's kind, answered by torch."""

from typing import TYPE_CHECKING, Any

from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

if TYPE_CHECKING:
    import torch


class CudaPlatform(Platform):
    """A GPU. Plugins may derive from it."""

    _enum = PlatformEnum.CUDA
    device_name: str = "cuda"
    device_type: str = "cuda"
    dispatch_key: str = "CUDA"
    dist_backend: str = "nccl"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """See base class."""
        import torch

        return str(torch.cuda.get_device_name(device_id))

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """See base class."""
        import torch

        return DeviceCapability(*torch.cuda.get_device_capability(device_id))

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """See base class."""
        import torch

        return int(torch.cuda.get_device_properties(device_id).total_memory)

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """See base class."""
        import torch

        return float(torch.cuda.max_memory_allocated(device))

    @classmethod
    def set_device(cls, device: "torch.device") -> None:
        """See base class."""
        import torch

        torch.cuda.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """See base class."""
        import torch

        torch.cuda.manual_seed_all(seed)
