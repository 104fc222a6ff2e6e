"""Core's own implementations, as strings: slow and obvious, always there, never hidden by VLLM_PLUGINS.

Imports nothing. A family's value is a table of references, or the reference of such a table, resolved on first use.
"""

BUILTIN: dict[str, dict[str, str] | str] = {
    "modulm.attention": {"torch": "modulm.reference.attention_torch:TorchAttention"},
    "modulm.checkpoints": {"safetensors": "modulm.checkpoints.safetensors:SafetensorsCheckpoint"},
    "modulm.executors": {"inprocess": "modulm.worker.executors:InProcessExecutor"},
    "modulm.kernels": {"torch": "modulm.reference.linear_torch:TorchKernels"},
    "modulm.models": "modulm.models.index:ARCHITECTURES",
}

PLATFORMS: dict[str, str] = {
    "cuda": "modulm.reference.platform_cuda:CUDAPlatform",
    "cpu": "modulm.reference.platform_cpu:CPUPlatform",
}
"""Asked in this order; the last one always serves."""

PROBES: dict[str, str] = {"cuda": "modulm.reference.platform_cuda:probe"}
"""Functions without arguments whose answer is true (or `Accepted`) where the platform can serve; must be cheap."""

DISTRIBUTION = "modulm-core"
