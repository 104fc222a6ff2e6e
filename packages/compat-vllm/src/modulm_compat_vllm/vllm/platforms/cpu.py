"""The processor as a platform of vLLM's kind, answered from modulm's own."""

from typing import TYPE_CHECKING, Any

from vllm.platforms.interface import Platform, PlatformEnum

if TYPE_CHECKING:
    import torch


class CpuPlatform(Platform):
    """The processor. Plugins may derive from it."""

    _enum = PlatformEnum.CPU
    device_name: str = "cpu"
    device_type: str = "cpu"
    dispatch_key: str = "CPU"
    dist_backend: str = "gloo"
    device_control_env_var = "CPU_VISIBLE_MEMORY_NODES"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """See base class."""
        return "cpu"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the machine's memory, or what this process may have of it."""
        from modulm_compat_vllm.platform import processor

        return processor().total_memory_bytes()

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return what is taken of that, by whomever."""
        from modulm_compat_vllm.platform import processor

        return float(processor().total_memory_bytes() - processor().available_memory_bytes())

    @classmethod
    def set_device(cls, device: "torch.device") -> None:
        """There is one."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """See base class."""
        import torch

        torch.manual_seed(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """There is no other memory to copy to."""
        return False
