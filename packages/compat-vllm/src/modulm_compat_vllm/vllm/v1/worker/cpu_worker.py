"""The worker class for the processor, to derive from."""

from vllm.v1.worker.engine_worker import EngineWorker


class CPUWorker(EngineWorker):
    """See `EngineWorker`."""
