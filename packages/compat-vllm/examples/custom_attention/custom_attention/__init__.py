"""Registers attention backends, by string: as `CUSTOM`, and two side by side under names of their own."""

from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend


def register() -> None:
    """Called once in every process."""
    register_backend(AttentionBackendEnum.CUSTOM, "custom_attention.kernel:MyFlashAttnBackend")
    register_backend("MY_FLASH_ATTN", "custom_attention.kernel:MyFlashAttnBackend")
    register_backend("MY_OLD_ATTN", "custom_attention.old_kernel:MyOldAttnBackend")
