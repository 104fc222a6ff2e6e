"""Platforms of vLLM's kind as platforms of modulm's, and the other way round for `vllm.platforms.current_platform`.

What a plugin's class says is asked where modulm asks; what it leaves to its base is answered by modulm's own platform
for the same kind of device, where there is one. Where to look next: `config.py` for its changes to the configuration,
`worker.py` for the worker class it names.
"""

import functools
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, cast

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.platforms.interface import Platform as VllmPlatform
from vllm.platforms.interface import PlatformEnum

from modulm.errors import ConfigError, Incompatible, ModulmError, Unsupported
from modulm.interfaces.platform import Platform
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm.plugins import refs
from modulm.plugins.builtin import PLATFORMS, PROBES
from modulm.plugins.platforms import current_platform
from modulm.plugins.registry import registry
from modulm_compat_vllm import config as configs
from modulm_compat_vllm import worker
from modulm_compat_vllm.stand_in import stand_in

if TYPE_CHECKING:
    import torch

    from modulm.config import EngineConfig
    from modulm.interfaces.attention import AttentionSpec

_VIEWS = {"cpu": "vllm.platforms.cpu:CpuPlatform", "cuda": "vllm.platforms.cuda:CudaPlatform"}
"""modulm's own platforms -> what shows them to plugins."""


@functools.cache
def built_in(device_type: str) -> Platform | None:
    """Return modulm's own platform for a kind of device, or None."""
    if device_type not in PLATFORMS:
        return None
    return cast(Platform, refs.resolve(PLATFORMS[device_type], f"Platform {device_type!r} (built in)")())


def processor() -> Platform:
    """Return modulm's own platform for the processor."""
    found = built_in("cpu")
    assert found is not None
    return found


def serves(name: str) -> bool:
    """Whether modulm's own platform of that name can serve here."""
    return bool(refs.resolve(PROBES[name], f"Platform {name!r} (built in)")())


def current() -> VllmPlatform:
    """Return the platform of this process as plugins know platforms."""
    own = current_platform()
    if isinstance(own, PlatformAdapter):
        return own.plugin
    if own.name in _VIEWS:
        return cast(VllmPlatform, refs.resolve(_VIEWS[own.name], f"Platform {own.name!r}")())
    said = {"_enum": PlatformEnum.OOT, "device_name": own.name, "device_type": own.device_type}
    return cast(VllmPlatform, type("OutOfTreePlatform", (VllmPlatform,), said)())


@functools.cache
def adapted(plugin_class: type[VllmPlatform]) -> type[Platform]:
    """Return the class that stands for a plugin's. Raises `Incompatible` for what it must say and does not."""
    missing = [name for name in ("_enum", "device_name", "device_type") if not hasattr(plugin_class, name)]
    asked = f"Platform class {plugin_class.__module__}.{plugin_class.__qualname__}"
    if missing:
        raise Incompatible(f"{asked} has no {' and no '.join(missing)}. Each platform must say them: add them.")
    device_type = plugin_class.device_type
    base = built_in(device_type)
    said = {
        "name": plugin_class.device_name,
        "device_type": device_type,
        "kernels": base.kernels if base else (),
        "attention_backends": base.attention_backends if base else (),
        "supported_dtypes": base.supported_dtypes if base else Platform.supported_dtypes,
    }
    return stand_in(PlatformAdapter, plugin_class, **said)


def _says(plugin_class: type, name: str) -> bool:
    """Whether the plugin's class, or one of its own bases, defines `name`."""
    return any(name in vars(each) for each in plugin_class.__mro__ if not each.__module__.startswith("vllm."))


class PlatformAdapter(Platform):
    """Asks a plugin's platform.

    Attributes:
        plugin: The plugin's object, which `vllm.platforms.current_platform` is.
    """

    plugin_class: ClassVar[type[VllmPlatform]]

    def __init__(self) -> None:
        self.plugin = self.plugin_class()
        self._base = built_in(self.device_type)
        self._is_started = False
        self._asked_attention = "auto"
        if self._says("supported_dtypes"):
            names = tuple(str(dtype).removeprefix("torch.") for dtype in self.plugin.supported_dtypes)
            self.supported_dtypes = names  # type: ignore[misc]

    def _says(self, name: str) -> bool:
        return _says(self.plugin_class, name)

    def device(self, index: int = 0) -> "torch.device":
        """See base class; the first call lets the plugin import its kernels and set the device."""
        import torch

        found = torch.device(self.device_type) if self.device_type == "cpu" else torch.device(self.device_type, index)
        if not self._is_started:
            self._is_started = True
            self.plugin.import_kernels()
            if self._says("set_device"):
                self.plugin.set_device(found)
        return found

    def device_name(self, index: int = 0) -> str:
        """See base class."""
        return self.device_type if self.device_type == "cpu" else f"{self.device_type}:{index}"

    def total_memory_bytes(self, index: int = 0) -> int:
        """See base class."""
        if self._says("get_device_total_memory"):
            return int(self.plugin.get_device_total_memory(index))
        if self._base is None:
            raise Incompatible(
                f"Platform {self.name!r} is for device_type={self.device_type!r} and does not say how much memory it "
                f"has. modulm knows that of {' and '.join(PLATFORMS)} only. Add get_device_total_memory."
            )
        return self._base.total_memory_bytes(index)

    def available_memory_bytes(self, index: int = 0) -> int:
        """Return what is free, and no more than the plugin says there is."""
        if self._base is not None:
            return min(self._base.available_memory_bytes(index), self.total_memory_bytes(index))
        taken = self.plugin.get_current_memory_usage() if self._says("get_current_memory_usage") else 0
        return self.total_memory_bytes(index) - int(taken)

    def default_dtype(self, checkpoint_dtype: str) -> str:
        """See base class."""
        wanted = self._base.default_dtype(checkpoint_dtype) if self._base else super().default_dtype(checkpoint_dtype)
        return wanted if wanted in self.supported_dtypes else self.supported_dtypes[-1]

    def supports_quantization(self, name: str) -> Support:
        """Ask `verify_quantization`."""
        try:
            self.plugin.verify_quantization(name)
        except ValueError as error:
            return Rejected(str(error))
        return Accepted()

    def attention_backends_for(self, spec: "AttentionSpec") -> tuple[str, ...]:
        """Ask `get_attn_backend_cls`, whose answer is taken or is an error, unless the user chose."""
        if self._asked_attention != "auto":
            return ()
        if not self._says("get_attn_backend_cls"):
            return self._base.attention_backends_for(spec) if self._base else ()
        path = self._ask_for_attention(spec)
        found = registry("modulm.attention")
        name = _own_attention(path) or path
        if name == path and name not in found:
            found.register(name, path)
        answer = found.get(name).supports(spec)
        if isinstance(answer, Rejected):
            raise Unsupported(
                f"Platform {self.name!r} chooses attention backend {path!r}, which refuses a layer: {answer.reason}. "
                "Name another with --attention-backend, or mend the platform's get_attn_backend_cls."
            )
        return (name,)

    def _ask_for_attention(self, spec: "AttentionSpec") -> str:
        from modulm_compat_vllm.selector import selector_config

        ask = self.plugin.get_attn_backend_cls
        options = {"num_heads": spec.num_heads} if "num_heads" in inspect.signature(ask).parameters else {}
        try:
            path = ask(None, selector_config(spec), **options)
        except Exception as error:
            raise refs.broken(f"Platform {self.name!r}", "get_attn_backend_cls", error) from error
        if not isinstance(path, str) or not path:
            raise Incompatible(
                f"Platform {self.name!r} answers {path!r} to get_attn_backend_cls, but must answer a class path, "
                "'module.Class'. Mend it, or name a backend with --attention-backend."
            )
        return path

    def check_and_update_config(self, config: "EngineConfig") -> None:
        """Let the plugin change a view of the configuration, and take its changes back."""
        who = f"Platform {self.name!r}"
        seen = configs.view(config, device_type=self.device_type)
        before = configs.state(seen)
        try:
            with set_current_vllm_config(seen):
                self.plugin.pre_register_and_update()
                self.plugin.apply_config_platform_defaults(seen)
                self.plugin.check_and_update_config(seen)
            self._verify(seen)
        except ModulmError:
            raise
        except Exception as error:
            raise ConfigError(f"{who} refuses the configuration: {type(error).__name__}: {error}") from error
        rest = configs.take_back(before, seen, config, who=who)
        self._asked_attention = config.attention_backend
        worker_class = rest.get("parallel_config.worker_cls", "auto")
        if worker_class != "auto":
            self._use_worker(worker_class, config, seen)
        if self._base is not None:
            self._base.check_and_update_config(config)

    def _verify(self, seen: VllmConfig) -> None:
        if self._says("verify_model_arch"):
            for architecture in seen.model_config.architectures:
                self.plugin.verify_model_arch(architecture)
        if self._says("check_if_supports_dtype") and seen.model_config.dtype != "auto":
            self.plugin.check_if_supports_dtype(seen.model_config.dtype)

    def _use_worker(self, path: Any, config: "EngineConfig", seen: VllmConfig) -> None:
        if config.executor not in ("inprocess", path):  # the path: this configuration has been used before
            raise ConfigError(
                f"Platform {self.name!r} sets worker_cls={path!r}, but executor={config.executor!r} was asked for, and "
                "the one takes the place of the other. Leave the option out, or choose another platform with --device."
            )
        config.executor = worker.executor_for(path, seen)

    def manual_seed(self, seed: int) -> None:
        """See base class."""
        if self._says("manual_seed_all"):
            self.plugin.manual_seed_all(seed)
        elif self._base is not None:
            self._base.manual_seed(seed)

    def synchronize(self) -> None:
        """See base class."""
        if self._base is not None:
            self._base.synchronize()
        elif (wait := self.plugin.synchronize) is not None:
            wait()


def _own_attention(path: str) -> str | None:
    """Return modulm's name for a backend whose class path is vLLM's own."""
    if not path.startswith("vllm."):
        return None
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    found = next((member for member in AttentionBackendEnum if member.value == path), None)
    return None if found is None else found.name.lower()
