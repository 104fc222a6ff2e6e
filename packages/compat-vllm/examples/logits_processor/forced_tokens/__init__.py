"""A request may say which tokens come first: `extra_args={"forced_token_ids": [...]}`, over HTTP `vllm_xargs`."""

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

Row = tuple[list[int], list[int]]
"""Tokens to come, and the request's output so far."""


class ForcedTokens(LogitsProcessor):
    """Leaves one token in the rows of such requests until theirs are used up."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what is no list of token ids."""
        forced = (sampling_params.extra_args or {}).get("forced_token_ids", [])
        if not isinstance(forced, list) or not all(isinstance(token, int) for token in forced):
            raise ValueError(f"forced_token_ids={forced!r} is no list of token ids")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.rows: dict[int, Row] = {}
        self.vocab_size = vllm_config.model_config.get_vocab_size()

    def is_argmax_invariant(self) -> bool:
        """The likeliest token becomes another."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows of requests that force something."""
        process_dict_updates(self.rows, batch_update, self._new)

    @staticmethod
    def _new(params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]) -> Row | None:
        forced = (params.extra_args or {}).get("forced_token_ids")
        return (forced, output_ids) if forced else None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave the next forced token."""
        for row, (forced, output_ids) in self.rows.items():
            if len(output_ids) < len(forced):
                token = forced[len(output_ids)]
                assert token < self.vocab_size
                kept = logits[row, token].clone()
                logits[row] = float("-inf")
                logits[row, token] = kept
        return logits
