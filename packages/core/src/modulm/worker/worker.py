"""The worker, put together: model, attention backends, KV cache, sampler, runner; then one step at a time.

All that was chosen comes in from outside (`launch.py`); nothing is chosen here but how many KV blocks there are.
torch is imported where a model runs eagerly or has to be recorded; a saved recording needs none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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
from modulm.programs import SavedModel
from modulm.reference.sampling_numpy import NumpySampling
from modulm.speculation import Speculation
from modulm.types import KVLayout, Plan, StepResult
from modulm.worker.attention_layers import AttentionLayers
from modulm.worker.batch import Batch
from modulm.worker.drafting import Drafter
from modulm.worker.groups import Grouping, grouped
from modulm.worker.kv_budget import num_blocks
from modulm.worker.kv_memory import as_tensors, device_caches, host_caches
from modulm.worker.load import Progress, TensorSource
from modulm.worker.model import LoadedModel, load_saved, load_torch
from modulm.worker.recorded import run_natively
from modulm.worker.runner import Runner
from modulm.worker.sampler import Sampler

if TYPE_CHECKING:
    from modulm.worker.program import Program

_log = logger("worker")


class Worker:
    """One model on one device. Raises `ConfigError`, `CheckpointError` or `Unsupported` while it is built.

    Args:
        config: What the user asked for.
        model_config: What the checkpoint declares.
        checkpoint: Opened; its tensors are read here.
        model_class: Returns a `CausalLM`; called only where a saved recording does not do.
        scheme: Of a quantized checkpoint, else None.
        kernels: Asked in order, for each weight.
        attention: Returns the backend for a layer's specification.
        platform: The device's.
        logits_processors: Classes, after the built-in ones.
        progress: Told (done, total) while tensors load.
        saved: What an earlier process recorded of this model.
        key: Under which to save what is recorded now; None does not.
        speculation: A speculator to be made; None for no drafts but those of grammars.

    Attributes:
        shares_prefixes: Whether the keys and values of a prefix are the same in every sequence that begins with it.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        *,
        checkpoint: Checkpoint,
        model_class: Callable[[], type[Any]],
        scheme: QuantizationScheme | None,
        kernels: list[KernelProvider],
        attention: Callable[[AttentionSpec], AttentionBackend],
        platform: Platform,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        progress: Progress | None = None,
        saved: SavedModel | None = None,
        key: str | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        precision = None if config.kernel_precision == "auto" else config.kernel_precision
        for provider in kernels:
            provider.configure(num_threads=config.cpu_threads, precision=precision)
        device, block_size, max_model_len = platform.device_name(), config.block_size, model_config.max_model_len
        declared = None if scheme is None else scheme.kv_cache_dtype(checkpoint)
        source = TensorSource(
            checkpoint,
            scheme=scheme,
            kernels=kernels,
            device=device,
            dtype=model_config.dtype,
            progress=progress,
            kv_cache_dtype=declared if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
        )
        load = partial(load_torch, config=model_config, source=source)
        why_eager = _why_eager(config, platform.device_type, kernels)
        if saved is not None and not why_eager:
            model = load_saved(saved, source)
        else:
            model = load(model_class(), why_eager=why_eager, key=key)
        checkpoint.release()
        layers = AttentionLayers(
            model.specs,
            kv_cache_dtype=config.kv_cache_dtype,
            declared=declared,
            scales=source.kv_scales,
            device_type=platform.device_type,
            exact=config.kernel_precision == "exact",
            attention=attention,
        )
        grouping = grouped(layers.pages(block_size), max_model_len)
        count = num_blocks(
            config, grouping, max_model_len=max_model_len, platform=platform, weights_bytes=source.size_bytes
        )
        self._layout = KVLayout(block_size=block_size, num_blocks=count, groups=grouping.groups)
        batch = _batch(config, max_model_len, [group.sliding_window for group in grouping.groups])
        self.shares_prefixes = not model.depends_on_length
        memory = _Memory(layers, grouping, self._layout)
        program, how = _native_program(model, kernels, memory)
        if program is None:
            if model.module is None:  # saved by a process that was asked for other kernels or backends
                model = load(model_class(), why_eager=how)
            program = _eager_program(model.module, memory, platform, config.cpu_threads)
        sampler = Sampler(config, batch, _sampling(kernels, platform), device=device, processors=logits_processors)
        drafter = _drafter(speculation, config, model_config)
        self._runner: Runner | None = Runner(batch, program, sampler, model_config.vocab_size, drafter)
        self._description = {
            "device": device,
            "dtype": model_config.dtype,
            "weights_bytes": source.size_bytes,
            "kv_cache_bytes": count * grouping.block_bytes,
            **layers.describe(),
            "kv_blocks": f"{count} of {block_size} tokens in {len(grouping.groups)} groups",
            "kernels": ", ".join(
                f"{kernel.name}{f' ({told})' if (told := kernel.describe()) else ''}" for kernel in kernels
            ),
            **({} if scheme is None else {"quantization": {"format": scheme.name, **scheme.describe()}}),
            "weights by kernel": dict(source.choices),
            "program": how,
        }
        if speculation is not None:
            self._description["drafts"] = f"{speculation.choice.name}: up to {speculation.num_tokens} tokens"
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


def _why_eager(config: EngineConfig, device_type: str, kernels: list[KernelProvider]) -> str:
    """Return why no program can run, whatever the model; empty if one may."""
    if config.enforce_eager:
        return "enforce_eager says so"
    if device_type != "cpu":
        return f"programs are recorded for the CPU, not for {device_type!r}"
    if not any(provider.runs_programs for provider in kernels):
        return f"none of the kernels {', '.join(provider.name for provider in kernels)} runs step programs"
    return ""


class _Memory:
    """What the KV cache will be, until somebody asks for it on the host or on a device."""

    def __init__(self, layers: AttentionLayers, grouping: Grouping, layout: KVLayout) -> None:
        self.layers = layers
        self.groups = {name: index for index, group in enumerate(grouping.groups) for name in group.layer_names}
        self.planners = layers.planners(grouping)
        dtypes = {name: spec.kv_cache_dtype for name, spec in layers.specs.items()}
        self._sizes = (grouping.buffers, layers.shapes(layout.num_blocks, layout.block_size), dtypes)

    def on_host(self) -> dict[str, Any]:
        return host_caches(*self._sizes)

    def on_device(self, device: Any) -> dict[str, Any]:
        return as_tensors(self.on_host()) if device.type == "cpu" else device_caches(*self._sizes, device)


def _native_program(model: LoadedModel, kernels: list[KernelProvider], memory: _Memory) -> "tuple[Program | None, str]":
    """Return what runs the model in native code, or None, and what to say of it."""
    if model.recorded is None:
        return None, f"eager: {model.why_eager}"
    able = [provider for provider in kernels if provider.runs_programs]
    try:
        return run_natively(
            model.recorded, able, layers=memory.layers, groups=memory.groups, kv_caches=memory.on_host()
        )
    except Unsupported as error:
        return None, f"eager: {error}"


def _eager_program(module: Any, memory: _Memory, platform: Platform, cpu_threads: int | None) -> "Program":
    import torch

    from modulm.worker.program import EagerProgram, bind_attention

    if cpu_threads is not None:
        torch.set_num_threads(cpu_threads)
    bind_attention(module, memory.layers)
    device = platform.device()
    return EagerProgram(module, kv_caches=memory.on_device(device), planners=memory.planners, device=device)


def _sampling(kernels: Sequence[KernelProvider], platform: Platform) -> SamplingKernels:
    """Return kernels for logits where they are: on the host the first provider's that has some."""
    if platform.device_type != "cpu":
        from modulm.reference.sampling_torch import TorchSampling

        return TorchSampling(platform.device())
    return next((found for provider in kernels if (found := provider.sampling()) is not None), NumpySampling())


def _drafter(speculation: Speculation | None, config: EngineConfig, model_config: ModelConfig) -> Drafter | None:
    if speculation is None:
        return None
    vocab_size = model_config.vocab_size
    speculator = speculation.make(
        vocab_size=vocab_size, max_model_len=model_config.max_model_len, max_num_seqs=config.max_num_seqs
    )
    return Drafter(
        speculator,
        asked=speculation.asked,
        num_tokens=speculation.num_tokens,
        vocab_size=vocab_size,
        on_failure=speculation.failed,
    )


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
