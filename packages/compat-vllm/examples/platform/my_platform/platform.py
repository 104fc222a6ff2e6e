"""`MyDevice`, which is the processor under another name, with a worker class and an attention backend of its own."""

from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.platforms import Platform, PlatformEnum

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

logger = init_logger("vllm.my_platform")


class MyPlatform(Platform):
    """Chosen wherever the device is."""

    _enum = PlatformEnum.OOT
    device_name: str = "MyDevice"
    device_type: str = "cpu"
    dispatch_key: str = "CPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Name the worker class, and the tokens in a block."""
        parallel_config = vllm_config.parallel_config
        if parallel_config.worker_cls == "auto":
            parallel_config.worker_cls = "my_platform.worker.MyWorker"
        vllm_config.cache_config.block_size = 32
        vllm_config.compilation_config.custom_ops = ["all"]

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: "AttentionBackendEnum | None",
        attn_selector_config: "AttentionSelectorConfig",
        num_heads: int | None = None,
    ) -> str:
        """Return the class path of the attention backend for such layers."""
        logger.info("attention for %s heads of size %d", num_heads, attn_selector_config.head_size)
        return "custom_attention.kernel.MyFlashAttnBackend"

    @classmethod
    def set_device(cls, device: "torch.device") -> None:
        """Called once, before weights are loaded."""
        logger.info("device %s is set", device)
