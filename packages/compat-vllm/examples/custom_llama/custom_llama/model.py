"""Llama whose last hidden states are multiplied by `hidden_scale` of config.json."""

import os

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.sequence import IntermediateTensors

logger = init_logger("vllm.custom_llama")


class MyCustomLlama(LlamaForCausalLM):
    """Calls Llama's own forward, and changes what it returns."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.hidden_scale = getattr(vllm_config.model_config.hf_config, "hidden_scale", 1.0)
        self.num_calls = 0

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden_size]."""
        hidden_states = super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        self.num_calls += 1
        logger.debug(
            "MyCustomLlama.forward: call %d, %d tokens, process %d", self.num_calls, len(positions), os.getpid()
        )
        return hidden_states * self.hidden_scale
