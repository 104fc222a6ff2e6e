"""From what the user asked for to what will run: platform, checkpoint, architecture, quantization, length, dtype.

Every choice is kept with the reasons of all candidates, for `modulm config --explain`. Asks registries for classes and
builds none of them but the checkpoint reader; imports no room and no torch.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from modulm import programs
from modulm.checkpoints.folder import read_tokenizer
from modulm.checkpoints.location import locate
from modulm.config import DTYPES, EngineConfig, ModelConfig
from modulm.errors import CheckpointError, ConfigError, PluginError, Unsupported
from modulm.interfaces.attention import AttentionBackend, AttentionSpec
from modulm.interfaces.checkpoint import Checkpoint, TokenizerData
from modulm.interfaces.kernels import KernelProvider
from modulm.interfaces.platform import Platform
from modulm.interfaces.quantization import QuantizationScheme
from modulm.interfaces.quantization_config import quantization_config
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm.log import logger
from modulm.plugins import discovery, refs
from modulm.plugins.builtin import DISTRIBUTION
from modulm.plugins.choose import Choice, choose, make, run
from modulm.plugins.contracts import takes
from modulm.plugins.families import PLATFORM
from modulm.plugins.models import ModelRegistry
from modulm.plugins.platforms import current_platform
from modulm.plugins.records import is_strict
from modulm.plugins.registry import registry
from modulm.programs import SavedModel
from modulm.speculation import Speculation, choose_speculation

_log = logger("resolve")
_DEFAULT_MAX_MODEL_LEN = 2048


@dataclass(kw_only=True)
class Resolution:
    """Everything chosen before a model is built. `choices` grows while the worker asks for attention backends.

    `saved` is what an earlier process recorded of the model, `key` the name for that; `model_class` imports the class.
    """

    config: EngineConfig
    platform: Platform
    checkpoint: Checkpoint
    model: ModelConfig
    architecture: str
    model_class: Callable[[], type[Any]]
    scheme: QuantizationScheme | None
    kernels: list[KernelProvider]
    generation_config: dict[str, Any]
    saved: SavedModel | None = None
    key: str | None = None
    speculation: Speculation | None = None
    choices: list[Choice] = field(default_factory=list)
    _attention: dict[AttentionSpec, AttentionBackend] = field(default_factory=dict)

    def attention(self, spec: AttentionSpec) -> AttentionBackend:
        """Return the backend for a layer; layers of one spec share an instance."""
        if spec not in self._attention:
            names = _ordered(self.platform.attention_backends_for(spec), registry("modulm.attention").names())
            asked = self.config.attention_backend
            if asked == "auto":
                asked = os.environ.get("VLLM_ATTENTION_BACKEND", "").strip() or asked
            choice = choose("modulm.attention", asked, names, lambda cls: _serves(cls, spec))
            self.choices.append(choice)
            make_it = cast(type[AttentionBackend], choice.value).create
            made = run("modulm.attention", choice.name, "making it", make_it, spec, self.config, self.model)
            self._attention[spec] = made
        return self._attention[spec]


def resolve(config: EngineConfig) -> Resolution:
    """Make every choice that needs no tensors. Raises `ConfigError`, `PluginError` or `CheckpointError`."""
    platform = current_platform(config.device)
    run(PLATFORM, platform.name, "check_and_update_config()", platform.check_and_update_config, config)
    if config.cpu_threads is not None and platform.device_type != "cpu":
        raise ConfigError(
            f"cpu_threads={config.cpu_threads!r} does not work on platform {platform.name!r}, which computes on "
            f"{platform.device_type!r}. Only platforms that compute on the CPU have threads to count: leave the option "
            "out, or choose device='cpu'."
        )
    checkpoint, format_choice = open_checkpoint(config)
    hf = _text_config(checkpoint.config())
    architectures = _architectures(config, hf)
    scheme, scheme_choice = _scheme(config, checkpoint, platform)
    kernels = _kernels(config, platform)
    first = ModelRegistry.find(architectures)
    key = None if first is None else program_key(config, hf, checkpoint, platform, kernels, first)
    saved = None if key is None else programs.load(key)

    def model_class() -> type[Any]:
        return ModelRegistry.resolve_model_cls(architectures)[0]

    if saved is None or first is None:
        found, architecture = ModelRegistry.resolve_model_cls(architectures)
        defaults = getattr(found, "config_defaults", {})
        key = key if first is not None and architecture == first[0] else None
    else:
        architecture, defaults = first[0], saved.config_defaults
    # Published configurations leave out what the model family takes for granted.
    model = model_config(config, {**defaults, **hf}, platform, kernels)
    generation = checkpoint.generation_config() if config.generation_config == "auto" else {}
    speculation = choose_speculation(config)
    choices = [
        Choice("platform", platform.name, platform, [(platform.name, Accepted(platform.device_type))]),
        format_choice,
        Choice("modulm.models", architecture, None, [(architecture, Accepted("named by the checkpoint"))]),
        scheme_choice,
        None if speculation is None else speculation.choice,
    ]
    return Resolution(
        config=config,
        platform=platform,
        checkpoint=checkpoint,
        model=model,
        architecture=architecture,
        model_class=model_class,
        scheme=scheme,
        kernels=kernels,
        generation_config=generation,
        saved=saved,
        key=key,
        speculation=speculation,
        choices=[choice for choice in choices if choice is not None],
    )


def open_checkpoint(config: EngineConfig) -> tuple[Checkpoint, Choice]:
    """Find the model's files and open them with the reader that accepts them."""
    path = locate(config.model, revision=config.revision, download_dir=config.download_dir)
    formats = registry("modulm.checkpoints")
    suffix = path.suffix.removeprefix(".")
    if path.is_file() and config.load_format == "auto" and suffix not in formats:
        formats.get(suffix)  # raises: not installed (with the package to install), or unknown
    candidates = _ordered(("safetensors",), formats.names())
    try:
        choice = choose("modulm.checkpoints", config.load_format, candidates, lambda reader: reader.matches(path))
    except Unsupported as error:
        raise Unsupported(f"Model {config.model!r} ({path.absolute()}) cannot be read: {error}") from error
    return cast(type[Checkpoint], choice.value).open(path), choice


def tokenizer_data(config: EngineConfig, checkpoint: Checkpoint) -> TokenizerData:
    """Return the tokenizer the user named, or the model's own."""
    if config.tokenizer is None:
        return checkpoint.tokenizer()
    try:
        path = locate(config.tokenizer, revision=config.revision, download_dir=config.download_dir)
        if path.is_dir():
            return read_tokenizer(path)
    except CheckpointError as error:
        raise CheckpointError(f"tokenizer={config.tokenizer!r} cannot be used: {error}") from error
    named = dataclasses.replace(config, model=str(path), load_format="auto")
    return open_checkpoint(named)[0].tokenizer()


def model_config(
    config: EngineConfig, hf: dict[str, Any], platform: Platform, kernels: Sequence[KernelProvider] = ()
) -> ModelConfig:
    """Read what the engine must know of config.json: architectures, dtype, longest sequence."""
    return ModelConfig(
        name=config.served_model_name or config.model,
        hf=hf,
        architectures=_architectures(config, hf),
        dtype=_dtype(config, hf, platform, kernels),
        max_model_len=_max_model_len(config, hf),
    )


def program_key(
    config: EngineConfig,
    hf: dict[str, Any],
    checkpoint: Checkpoint,
    platform: Platform,
    kernels: list[KernelProvider],
    model: tuple[str, str],
) -> str | None:
    """Return the digest of all that a recording of a model depends on; None where none could be used.

    `model` is (architecture, reference of its class).
    """
    if not program_dtypes(config, platform, kernels):
        return None
    architecture, reference = model
    spec = importlib.util.find_spec(refs.split(reference)[0])
    if spec is None or spec.origin is None:
        return None
    layers = Path(__file__).parent / "nn"
    tensors = {name: (info.shape, info.dtype) for name in checkpoint.tensor_names() if (info := checkpoint.info(name))}
    return programs.key_of(
        architecture=architecture,
        model=reference,
        config=hf,
        dtype=_dtype(config, hf, platform, kernels),
        max_model_len=config.max_model_len,
        quantization=config.quantization,
        tensors=tensors,
        numbers=programs.numbers_of(checkpoint),
        kernels=[kernel.name for kernel in kernels],
        settings=config.plugin_config,
        versions=[version(DISTRIBUTION), *sorted({record.origin for record in discovery.records()})],
        sources=programs.source_state([Path(spec.origin), *layers.glob("*.py")]),
    )


def program_dtypes(config: EngineConfig, platform: Platform, kernels: Sequence[KernelProvider]) -> tuple[str, ...]:
    """Return the dtypes in which programs may run here, the best first; none where models run eagerly."""
    if config.enforce_eager or platform.device_type != "cpu":
        return ()
    return next((kernel.program_dtypes for kernel in kernels if kernel.runs_programs), ())


def _architectures(config: EngineConfig, hf: dict[str, Any]) -> list[str]:
    names = hf.get("architectures")
    if not isinstance(names, list) or not names:
        raise CheckpointError(f"Model {config.model!r} names no 'architectures' in its config, so none can be chosen.")
    return [str(name) for name in names]


def _text_config(hf: dict[str, Any]) -> dict[str, Any]:
    """Models with several parts keep the language model's keys one level down."""
    text = hf.get("text_config")
    return {**hf, **text, "architectures": hf.get("architectures")} if isinstance(text, dict) else hf


def _dtype(config: EngineConfig, hf: dict[str, Any], platform: Platform, kernels: Sequence[KernelProvider]) -> str:
    stored = str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")
    if config.dtype == "auto":
        wanted = platform.default_dtype(stored)
        runs = program_dtypes(config, platform, kernels)
        # What is fast in torch may be what no program computes in, and a program is faster than torch.
        return wanted if wanted in runs else next((one for one in runs if one in platform.supported_dtypes), wanted)
    if config.dtype not in platform.supported_dtypes:
        raise ConfigError(
            f"dtype={config.dtype!r} does not work on platform {platform.name!r}. "
            f"It supports: {', '.join(platform.supported_dtypes)}."
        )
    return config.dtype


def _max_model_len(config: EngineConfig, hf: dict[str, Any]) -> int:
    longest = hf.get("max_position_embeddings")
    if config.max_model_len is None:
        if not isinstance(longest, int):
            _log.warning("Model %r does not say how long it may run; taking %d.", config.model, _DEFAULT_MAX_MODEL_LEN)
            return _DEFAULT_MAX_MODEL_LEN
        return longest
    if isinstance(longest, int) and config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is above the {longest} positions that model {config.model!r} was "
            f"made for (max_position_embeddings). Use at most {longest}."
        )
    return config.max_model_len


def _scheme(
    config: EngineConfig, checkpoint: Checkpoint, platform: Platform
) -> tuple[QuantizationScheme | None, Choice | None]:
    """By what the checkpoint declares, never by shape: `quant_method`, else the file format's own scheme.

    The user may name it too, by any of its names, or name one that quantizes what is stored in plain numbers.
    """
    family = registry("modulm.quantization")
    stored = quantization_config(checkpoint)
    declared = stored.method or (checkpoint.format if checkpoint.format in family else None)
    asked = config.quantization
    if declared is None and stored.keys:
        raise CheckpointError(
            f"Model {config.model!r} has a {stored.where} without a 'quant_method', so nothing says how it is stored. "
            "Add the method's name there."
        )
    if asked is not None and declared is not None and not _reads(asked.rpartition(":")[2], declared, checkpoint):
        raise ConfigError(
            f"quantization={asked!r} does not fit model {config.model!r}, which is stored as {declared!r}. "
            f"Leave the option out, or give {declared!r}."
        )
    name = asked or declared
    if name is None:
        return None, None

    def ask(scheme: type[QuantizationScheme]) -> Support:
        usable = platform.supports_quantization(scheme.name)
        answer = usable and (scheme.quantizes(checkpoint) if declared is None else scheme.matches(checkpoint))
        return Accepted("declared by the checkpoint") if answer and asked is None else answer

    choice = choose("modulm.quantization", name, [name], ask)
    return cast(type[QuantizationScheme], choice.value).from_checkpoint(checkpoint), choice


def _reads(asked: str, declared: str, checkpoint: Checkpoint) -> bool:
    """Say whether what the user names reads what is declared: a method has several names, as awq and awq_marlin are."""
    family = registry("modulm.quantization")
    return asked == declared or (asked in family and bool(family.get(asked).matches(checkpoint)))


def _kernels(config: EngineConfig, platform: Platform) -> list[KernelProvider]:
    """Providers in the order in which each weight asks them; core's reference comes last and serves everything."""
    if config.kernels != "auto":
        return [make("modulm.kernels", config.kernels)]
    providers = []
    others = [name for name in registry("modulm.kernels").names() if name != "torch"]
    for name in [*_ordered(platform.kernels, others), "torch"]:
        try:
            providers.append(make("modulm.kernels", name))
        except PluginError as error:  # installed but broken: listed, and the engine goes on
            _skip_broken("modulm.kernels", name, error)
    return providers


def _serves(cls: type[AttentionBackend], spec: AttentionSpec) -> Support:
    """Ask a backend, where its methods take what such a layer needs: one that is older than an option ignores it."""
    needs = (
        (spec.has_sinks, "forward", "sinks"),
        (spec.has_alibi, "forward", "alibi_slopes"),
        (spec.kv_cache_dtype not in DTYPES, "kv_cache_shape", "kv_cache_dtype"),
    )
    for is_needed, method, argument in needs:
        if is_needed and not takes(getattr(cls, method), argument):
            return Rejected(f"its {method}() does not take {argument}")
    return cls.supports(spec)


def _skip_broken(family: str, name: str, error: Exception) -> None:
    if name == "torch" or is_strict():
        raise error
    _log.warning("%s %r is installed but broken, so it is not used: %s", family, name, error)


def _ordered(first: tuple[str, ...], names: list[str]) -> list[str]:
    """Return `names` with those of `first` in front; unknown ones of `first` are left out."""
    return [name for name in first if name in names] + [name for name in names if name not in first]
