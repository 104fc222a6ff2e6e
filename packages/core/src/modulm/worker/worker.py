"""The worker, put together: model, attention backends, KV cache, sampler, runner; then one step at a time.

All that was chosen comes in from outside (`launch.py`); nothing is chosen here but how many KV blocks there are.
torch is imported when the first worker is built, not before.
"""

from collections.abc import Callable, Sequence
from typing import Any

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import ConfigError, EngineError, Unsupported
from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.checkpoint import Checkpoint
from modulm.interfaces.kernels import KernelProvider
from modulm.interfaces.logits import LogitsProcessor
from modulm.interfaces.platform import Platform
from modulm.interfaces.quantization import QuantizationScheme
from modulm.interfaces.sampling import SamplingKernels
from modulm.log import logger
from modulm.reference.sampling_numpy import NumpySampling
from modulm.types import KVLayout, Plan, StepResult
from modulm.worker.batch import Batch
from modulm.worker.groups import grouped
from modulm.worker.kv_budget import num_blocks
from modulm.worker.load import Progress, TensorSource, load_model
from modulm.worker.runner import Runner
from modulm.worker.sampler import Sampler

_log = logger("worker")


class Worker:
    """One model on one device. Raises `ConfigError`, `CheckpointError` or `Unsupported` while it is built.

    Args:
        config: What the user asked for.
        model_config: What the checkpoint declares.
        checkpoint: Opened; its tensors are read here.
        model_class: A `CausalLM`.
        scheme: Of a quantized checkpoint, else None.
        kernels: Asked in order, for each weight.
        attention: Returns the backend for a layer's specification.
        platform: The device's.
        logits_processors: Classes, after the built-in ones.
        progress: Told (done, total) while tensors load.

    Attributes:
        shares_prefixes: Whether the keys and values of a prefix are the same in every sequence that begins with it.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        *,
        checkpoint: Checkpoint,
        model_class: type[Any],
        scheme: QuantizationScheme | None,
        kernels: list[KernelProvider],
        attention: Callable[[AttentionSpec], AttentionBackend],
        platform: Platform,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        progress: Progress | None = None,
    ) -> None:
        import torch

        from modulm.reference.sampling_torch import TorchSampling
        from modulm.worker.attention_layers import AttentionLayers
        from modulm.worker.program import EagerProgram, Program, recorded

        if config.cpu_threads is not None:
            torch.set_num_threads(config.cpu_threads)
        for provider in kernels:
            provider.configure(num_threads=config.cpu_threads)
        device, block_size = platform.device(), config.block_size
        max_model_len = model_config.max_model_len
        dtype = getattr(torch, model_config.dtype)
        source = TensorSource(checkpoint, scheme=scheme, kernels=kernels, device=device, dtype=dtype, progress=progress)
        model = load_model(model_class, model_config, source)
        layers = AttentionLayers(model, kv_cache_dtype=config.kv_cache_dtype, device=device, attention=attention)
        grouping = grouped(layers.pages(block_size), max_model_len)
        count = num_blocks(
            config, grouping, max_model_len=max_model_len, platform=platform, weights_bytes=source.size_bytes
        )
        self._layout = KVLayout(block_size=block_size, num_blocks=count, groups=grouping.groups)
        batch = _batch(config, max_model_len, [group.sliding_window for group in grouping.groups])
        caches = layers.caches(grouping, count, block_size)
        eager = EagerProgram(model, kv_caches=caches, planners=layers.planners(grouping), device=device)
        self.shares_prefixes = not eager.depends_on_length
        program: Program = eager
        if config.enforce_eager:
            how = "eager, as enforce_eager says"
        elif device.type != "cpu":
            how = f"eager: programs are recorded for the CPU, not for {device.type!r}"
        else:
            groups = {name: i for i, group in enumerate(grouping.groups) for name in group.layer_names}
            try:
                program, how = recorded(model, kernels, kv_caches=caches, groups=groups, backends=layers.backends)
            except Unsupported as error:
                how = f"eager: {error}"
        sampling = _sampling(kernels) if device.type == "cpu" else TorchSampling(device)
        sampler = Sampler(config, batch, sampling, device=str(device), processors=logits_processors)
        self._runner: Runner | None = Runner(batch, program, sampler, model_config.vocab_size)
        self._description = {
            "device": str(device),
            "dtype": model_config.dtype,
            "weights_bytes": source.size_bytes,
            "kv_cache_bytes": count * grouping.block_bytes,
            "kv_blocks": f"{count} of {block_size} tokens in {len(grouping.groups)} groups",
            "weights by kernel": dict(source.choices),
            "program": how,
        }
        _log.info("%s", "; ".join(f"{name}: {value}" for name, value in self._description.items()))

    def describe(self) -> dict[str, Any]:
        """Return what was built: device, bytes, KV blocks, and how many weights each kernel serves."""
        return self._description

    def kv_layout(self) -> KVLayout:
        """Return block size, number of blocks and KV groups."""
        return self._layout

    def execute(self, plan: Plan) -> StepResult:
        """Run one step. Whatever it raises, no sequence has advanced."""
        if self._runner is None:
            raise EngineError("The worker has been shut down and runs no steps. Start a new engine.")
        return self._runner.execute(plan)

    def shutdown(self) -> None:
        """Let go of weights and cache; may be called twice."""
        self._runner = None


def _sampling(kernels: Sequence[KernelProvider]) -> SamplingKernels:
    """Return the first provider's kernels for logits on the host."""
    return next((found for provider in kernels if (found := provider.sampling()) is not None), NumpySampling())


def _batch(config: EngineConfig, max_model_len: int, windows: list[int | None]) -> Batch:
    try:
        return Batch(
            max_num_seqs=config.max_num_seqs,
            max_model_len=max_model_len,
            block_size=config.block_size,
            windows=windows,
            seed=config.seed,
        )
    except (MemoryError, ValueError) as error:  # numpy: too much, or more than it can count
        raise ConfigError(
            f"max_num_seqs={config.max_num_seqs!r} is refused: the tables for that many sequences of "
            f"{max_model_len:,} tokens do not fit into memory ({error}). Lower max_num_seqs or max_model_len."
        ) from error
