"""What the checkpoint says about sampling: recommended parameters, and the ids that end an output.

Reads generation_config.json, config.json and the tokenizer; knows no request.
"""

from typing import Any

from modulm.config import ModelConfig
from modulm.errors import ConfigError, RequestError
from modulm.frontend.tokenizer import Tokenizer
from modulm.sampling_params import SamplingParams

_TAKEN = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""generation_config.json's key -> ours."""


def default_params(generation_config: dict[str, Any]) -> SamplingParams:
    """Return the recommended parameters; raises `ConfigError` when they are impossible."""
    found = {ours: generation_config.get(theirs) for theirs, ours in _TAKEN.items()}
    try:
        return SamplingParams(**{name: value for name, value in found.items() if value is not None})
    except RequestError as error:
        raise ConfigError(
            f"The model's generation_config.json asks for what cannot be: {error} "
            "Start with generation_config='modulm' to leave it out."
        ) from error


def eos_token_ids(tokenizer: Tokenizer, generation_config: dict[str, Any], model_config: ModelConfig) -> list[int]:
    """Return every id that ends an output, the tokenizer's first; ids that the model cannot produce are left out."""
    candidates: list[Any] = [tokenizer.eos_token_id]
    for declared in (generation_config.get("eos_token_id"), model_config.get("eos_token_id")):
        candidates += declared if isinstance(declared, list) else [declared]
    found = dict.fromkeys(token_id for token_id in candidates if type(token_id) is int)
    return [token_id for token_id in found if 0 <= token_id < model_config.vocab_size]
