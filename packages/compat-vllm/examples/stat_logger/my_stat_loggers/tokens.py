"""Counts tokens, written when loggers had `log(stats)`."""

import prometheus_client
from vllm.config import VllmConfig
from vllm.engine.metrics_types import Stats
from vllm.v1.metrics.loggers import StatLoggerBase


class TokenLogger(StatLoggerBase):
    """In the older style."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.prompt_tokens = prometheus_client.Counter("my_prompt_tokens", "Prompt tokens.")
        self.generation_tokens = prometheus_client.Counter("my_generation_tokens", "Tokens that were generated.")
        self.first_token = prometheus_client.Histogram("my_first_token_seconds", "From arrival to the first token.")

    def log(self, stats: Stats) -> None:  # type: ignore[override]
        """Called after every step."""
        self.prompt_tokens.inc(stats.num_prompt_tokens_iter)
        self.generation_tokens.inc(stats.num_generation_tokens_iter)
        for seconds in stats.time_to_first_tokens_iter:
            self.first_token.observe(seconds)
