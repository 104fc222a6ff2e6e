"""What stands in modulm for a model class written for vLLM: a subclass that is made and called as modulm does it.

The layers are modulm's, from the class in `vllm/model_executor/models/` that the plugin's class derives from; what the
plugin's class overrides is called with vLLM's arguments. Such a model runs as it is written, step by step.
"""

import functools
from typing import Any

import torch
from torch import nn
from vllm import config as vllm_config_of
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.forward_context import get_forward_context, set_forward_context

from modulm.config import ModelConfig
from modulm.errors import Incompatible
from modulm.interfaces.model import ForwardBatch
from modulm.nn.traced import Traced, refuse


class VllmDecoder(nn.Module):
    """In front of a decoder (embedding, layers, norm), gives it vLLM's `forward`, which plugins call as well."""

    embed: Any

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return what enters the first layer."""
        found: torch.Tensor = self.embed(input_ids)
        return found

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden_size] after the final norm."""
        if intermediate_tensors is not None:
            raise NotImplementedError("intermediate_tensors are of pipeline parallelism, which modulm does not have.")
        batch = get_forward_context().batch_at(positions)
        return super().forward(input_ids, batch, inputs_embeds)


@functools.cache
def _decoder(ours: type[Any]) -> type:
    return type(ours.__name__, (VllmDecoder, ours), {"__module__": ours.__module__})


class VllmCausalLM(nn.Module):
    """In front of a model class of modulm's, gives it vLLM's constructor and methods."""

    config: Any
    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(modulm_view(vllm_config))
        self.model.__class__ = _decoder(type(self.model))  # type: ignore[arg-type]
        self.config = vllm_config.model_config.hf_config

    @classmethod
    def modulm_class(cls) -> type:
        """Return what stands for this class in modulm's registries."""
        return adapted(cls)  # type: ignore[arg-type]

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return what enters the first layer."""
        found: torch.Tensor = self.model.embed_input_ids(input_ids)
        return found

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden_size] after the final norm."""
        found: torch.Tensor = self.model(input_ids, positions, intermediate_tensors, inputs_embeds)
        return found

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocab_size]."""
        return super().compute_logits(hidden_states)  # type: ignore[misc]

    def load_weights(self, weights: Any) -> set[str]:
        """Not called: each layer asks for its tensors by their name in the checkpoint."""
        raise NotImplementedError(
            "load_weights() is not how modulm loads a model: each layer asks the checkpoint for its tensors by name."
        )


@functools.cache
def adapted(theirs: type[Any]) -> type:
    """Return the class that stands for a model class. Raises `Incompatible` for one that loads weights itself."""
    if theirs.load_weights is not VllmCausalLM.load_weights:
        raise Incompatible(
            f"Model class {theirs.__module__}.{theirs.__qualname__} overrides load_weights(), which modulm does not "
            "call: each layer asks the checkpoint for its tensors by name. Take the method out if it changes nothing, "
            "or write the model for modulm (modulm.interfaces.model)."
        )
    return type(theirs.__name__, (_Adapted, theirs), {"__module__": theirs.__module__, "theirs": theirs})


class _Adapted(nn.Module):
    """In front of a plugin's class, gives it modulm's constructor and methods: see `CausalLM` of the interfaces."""

    theirs: Any

    def __init__(self, config: ModelConfig) -> None:
        vllm_config = VllmConfig(model_config=model_view(config))
        with set_current_vllm_config(vllm_config):
            self.theirs.__init__(self, vllm_config=vllm_config, prefix="")

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Return hidden states [num_tokens, hidden_size] for token_ids int64 [num_tokens]."""
        if isinstance(token_ids, Traced):
            refuse("a model written for vLLM")
        with set_forward_context(batch):
            found: torch.Tensor = self.theirs.forward(
                self, input_ids=token_ids, positions=batch.positions, intermediate_tensors=None, inputs_embeds=None
            )
        return found


def model_view(config: ModelConfig) -> "vllm_config_of.ModelConfig":
    """Return what a checkpoint declares as vLLM's configuration says it."""
    return vllm_config_of.ModelConfig(
        config.name,
        dtype=getattr(torch, config.dtype),
        max_model_len=config.max_model_len,
        read_config=lambda: config.hf,
    )


def modulm_view(vllm_config: VllmConfig) -> ModelConfig:
    """Return the same the other way, with what a plugin has changed in `hf_config` before its base class saw it."""
    model = vllm_config.model_config
    return ModelConfig(
        name=model.model,
        hf=model.hf_config.to_dict(),
        architectures=model.architectures,
        dtype=str(model.dtype).removeprefix("torch."),
        max_model_len=model.max_model_len,
    )
