"""Fields that are known and do nothing here: wishes that cannot be honoured are refused, the others change no answer.

Fields that nobody knows are logged (`body.py`).
"""

from typing import Any

_NOT_YET = "this version has no {}"
_BEAM = _NOT_YET.format("beam search")
_TOOLS = "it is OpenAI's old form: use tools and tool_choice"

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_beam_search": ((False,), _BEAM),
    "length_penalty": ((1, 1.0), _BEAM),
    "early_stopping": ((False,), _BEAM),
    "functions": (([],), _TOOLS),
    "function_call": (("none",), _TOOLS),
    "suffix": (("",), _NOT_YET.format("infilling")),
    "logits_processors": (([],), "processors are loaded at the start, with --logits-processors"),
    "prompt_embeds": (([],), _NOT_YET.format("prompts of embeddings")),
    "audio": ((), _NOT_YET.format("audio")),
    "modalities": ((["text"],), "the answer is text"),
    "prediction": ((), _NOT_YET.format("predicted outputs")),
    "web_search_options": ((), _NOT_YET.format("web search")),
    "verbosity": (("medium",), "no model here is told of it"),
    "mm_processor_kwargs": (({},), _NOT_YET.format("images or audio")),
    "kv_transfer_params": (({},), _NOT_YET.format("KV transfer")),
    "repetition_detection": ((), _NOT_YET.format("detection of repetitions")),
}
"""Field -> (values that ask for nothing, beside null; why any other is refused)."""

HARMLESS = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention"),
    }
)
"""OpenAI's and vLLM's fields that change nothing in an answer of this server."""
