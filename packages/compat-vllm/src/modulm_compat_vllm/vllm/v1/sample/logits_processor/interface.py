"""Logits processors of a whole batch: modulm's own contract, which is vLLM's first interface.

Only the configuration that a processor is made with is another: it is vLLM's. The second interface
(`vllm.v1.worker.gpu.sample.logits_processor`) is not offered.
"""

from modulm.interfaces import logits
from modulm.interfaces.logits import AddedRequest, BatchUpdate, MoveDirectionality, MovedRequest, RequestLogitsProcessor

__all__ = [
    "AdapterLogitsProcessor",
    "AddedRequest",
    "BatchUpdate",
    "LogitsProcessor",
    "MoveDirectionality",
    "MovedRequest",
    "RemovedRequest",
    "RequestLogitsProcessor",
]

RemovedRequest = int


class LogitsProcessor(logits.LogitsProcessor):
    """Changes the logits of a whole batch before sampling; made as `Class(vllm_config, device, is_pin_memory)`."""

    @classmethod
    def modulm_class(cls) -> type:
        """Return a subclass that is made with modulm's configuration."""
        from modulm_compat_vllm.logits import adapted

        return adapted(cls)


class AdapterLogitsProcessor(LogitsProcessor, logits.AdapterLogitsProcessor):
    """Wraps per-request callables: implement `is_argmax_invariant` and `new_req_logits_processor`."""
