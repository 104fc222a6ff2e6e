"""Llama, with vLLM's constructor and methods over modulm's layers."""

from modulm.models import llama
from modulm_compat_vllm.model import VllmCausalLM


class LlamaForCausalLM(VllmCausalLM, llama.LlamaForCausalLM):  # type: ignore[misc]
    """To derive from. `model` and `lm_head` hold modulm's layers, named as in the checkpoint."""
