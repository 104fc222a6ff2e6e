"""Qwen2, with vLLM's constructor and methods over modulm's layers."""

from modulm.models import qwen2
from modulm_compat_vllm.model import VllmCausalLM


class Qwen2ForCausalLM(VllmCausalLM, qwen2.Qwen2ForCausalLM):  # type: ignore[misc]
    """To derive from. `model` and `lm_head` hold modulm's layers, named as in the checkpoint."""
