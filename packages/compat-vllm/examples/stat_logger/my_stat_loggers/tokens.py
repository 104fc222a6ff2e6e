"""Counts tokens, written when loggers had `log(stats)`."""

import prometheus_client
from vllm.config import VllmConfig
from vllm.engine.metrics_types import Stats
from vllm.v1.metrics.loggers import StatLoggerBase

PROMPT_TOKENS = prometheus_client.Counter("my_prompt_tokens", "Prompt tokens.")
GENERATION_TOKENS = prometheus_client.Counter("my_generation_tokens", "Tokens that were generated.")
FIRST_TOKEN = prometheus_client.Histogram("my_first_token_seconds", "From arrival to the first token.")


class TokenLogger(StatLoggerBase):
    """In the older style."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.engine_index = engine_index

    def log(self, stats: Stats) -> None:  # type: ignore[override]
        """Called after every step."""
        PROMPT_TOKENS.inc(stats.num_prompt_tokens_iter)
        GENERATION_TOKENS.inc(stats.num_generation_tokens_iter)
        for seconds in stats.time_to_first_tokens_iter:
            FIRST_TOKEN.observe(seconds)
