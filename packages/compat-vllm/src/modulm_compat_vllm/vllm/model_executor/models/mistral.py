"""Mistral, with vLLM's constructor and methods over modulm's layers."""

from modulm.models import mistral
from modulm_compat_vllm.model import VllmCausalLM


class MistralForCausalLM(VllmCausalLM, mistral.MistralForCausalLM):  # type: ignore[misc]
    """To derive from. `model` and `lm_head` hold modulm's layers, named as in the checkpoint."""
