"""The worker class for GPUs, to derive from."""

from vllm.v1.worker.engine_worker import EngineWorker


class Worker(EngineWorker):
    """See `EngineWorker`."""
