"""Qwen3, with vLLM's constructor and methods over modulm's layers."""

from modulm.models import qwen3
from modulm_compat_vllm.model import VllmCausalLM


class Qwen3ForCausalLM(VllmCausalLM, qwen3.Qwen3ForCausalLM):  # type: ignore[misc]
    """To derive from. `model` and `lm_head` hold modulm's layers, named as in the checkpoint."""
