"""`Platform`, the class that vLLM's platform plugins derive from, with what modulm asks of it and what it answers.

Which of its methods have an effect here: see `modulm_compat_vllm/platform.py`, which stands for such a class in
modulm's registries. Methods for what modulm does not do (communicators, graphs, passes) may be overridden and are not
called.
"""

import functools
import platform as machine
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.logger import init_logger

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

_logger = init_logger(__name__)


def in_wsl() -> bool:
    """Whether this is Linux inside Windows."""
    return "microsoft" in " ".join(machine.uname()).lower()


class PlatformEnum(Enum):
    """Kinds of platforms; those of plugins are `OOT`, out of tree."""

    CUDA = auto()
    ROCM = auto()
    TPU = auto()
    XPU = auto()
    CPU = auto()
    OOT = auto()
    UNSPECIFIED = auto()


class CpuArchEnum(Enum):
    """Kinds of processors."""

    X86 = auto()
    ARM = auto()
    POWERPC = auto()
    S390X = auto()
    RISCV = auto()
    OTHER = auto()
    UNKNOWN = auto()


_ARCHITECTURES = {
    **dict.fromkeys(("x86_64", "amd64", "i386", "i686"), CpuArchEnum.X86),
    "ppc64le": CpuArchEnum.POWERPC,
    "s390x": CpuArchEnum.S390X,
    "riscv64": CpuArchEnum.RISCV,
}


@functools.total_ordering
class DeviceCapability(NamedTuple):
    """A GPU's compute capability."""

    major: int
    minor: int

    def as_version_str(self) -> str:
        """Return "9.0"."""
        return f"{self.major}.{self.minor}"

    def to_int(self) -> int:
        """Return 90 for 9.0."""
        assert self.minor < 10
        return self.major * 10 + self.minor


class Platform:
    """One kind of device. `_enum`, `device_name` and `device_type` are the class's to say."""

    _enum: PlatformEnum
    device_name: str
    device_type: str
    dispatch_key: str = "CPU"
    ray_device_key: str = ""
    device_control_env_var: str = "VLLM_DEVICE_CONTROL_ENV_VAR_PLACEHOLDER"
    simple_compile_backend: str = "inductor"
    dist_backend: str = ""
    supported_quantization: list[str] = []
    """Names of checkpoints' quantizations that may run here; empty: all."""
    additional_env_vars: list[str] = []

    @classmethod
    def modulm_class(cls) -> type:
        """Return what stands for this class in modulm's registries."""
        from modulm_compat_vllm.platform import adapted

        return adapted(cls)  # type: ignore[arg-type]

    @property
    def supported_dtypes(self) -> "list[torch.dtype]":
        """Those that weights and activations may have, best first."""
        import torch

        return [torch.bfloat16, torch.float16, torch.float32]

    def is_cuda(self) -> bool:
        """Whether this is CUDA."""
        return self._enum == PlatformEnum.CUDA

    def is_rocm(self) -> bool:
        """Whether this is ROCm."""
        return self._enum == PlatformEnum.ROCM

    def is_tpu(self) -> bool:
        """Whether this is a TPU."""
        return self._enum == PlatformEnum.TPU

    def is_xpu(self) -> bool:
        """Whether this is an Intel GPU."""
        return self._enum == PlatformEnum.XPU

    def is_cpu(self) -> bool:
        """Whether this is the processor, and no plugin's platform."""
        return self._enum == PlatformEnum.CPU

    def is_out_of_tree(self) -> bool:
        """Whether a plugin brings this platform."""
        return self._enum == PlatformEnum.OOT

    def is_unspecified(self) -> bool:
        """Whether nobody knows what this is."""
        return self._enum == PlatformEnum.UNSPECIFIED

    def is_cuda_alike(self) -> bool:
        """Whether this is CUDA or ROCm."""
        return self._enum in (PlatformEnum.CUDA, PlatformEnum.ROCM)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the device's name."""
        raise NotImplementedError

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return what tells the device from all others."""
        raise NotImplementedError

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return bytes."""
        raise NotImplementedError

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return bytes that are taken."""
        raise NotImplementedError

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """Return a GPU's compute capability, None for what has none."""
        return None

    @classmethod
    def has_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Whether the device has at least this compute capability; (9, 0) and 90 are the same."""
        found = cls.get_device_capability(device_id)
        if found is None:
            return False
        return found.to_int() >= capability if isinstance(capability, int) else tuple(found) >= capability

    @classmethod
    def is_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Whether the device has exactly this compute capability."""
        found = cls.get_device_capability(device_id)
        if found is None:
            return False
        return found.to_int() == capability if isinstance(capability, int) else tuple(found) == capability

    @classmethod
    def set_device(cls, device: "torch.device") -> None:
        """Make it the current device; called once, before weights are loaded."""
        raise NotImplementedError

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the device's generators."""
        raise NotImplementedError

    @classmethod
    def import_kernels(cls) -> None:
        """Import what registers the platform's own kernels; called once, before weights are loaded."""

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Called before the configuration is looked at; `parser` is None: modulm's options are its own."""

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: "VllmConfig") -> None:
        """Change the configuration in place; called before `check_and_update_config`, by the same rules."""

    @classmethod
    def check_and_update_config(cls, vllm_config: "VllmConfig") -> None:
        """Check the configuration and change it in place. A change that modulm cannot honour is an error naming it."""

    @classmethod
    def verify_model_arch(cls, model_arch: str) -> None:
        """Raise `ValueError` to refuse an architecture that the checkpoint names."""

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Raise `ValueError` to refuse a checkpoint's quantization."""
        if cls.supported_quantization and quant not in cls.supported_quantization:
            raise ValueError(f"{quant} quantization is currently not supported in {cls.device_name}.")

    @classmethod
    def check_if_supports_dtype(cls, dtype: "torch.dtype") -> None:
        """Raise `ValueError` to refuse a dtype that was asked for."""

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: "AttentionBackendEnum | None",
        attn_selector_config: "AttentionSelectorConfig",
        num_heads: int | None = None,
    ) -> str:
        """Return the class path of the attention backend for such layers; an empty string is an error."""
        return ""

    @classmethod
    def get_cpu_architecture(cls) -> CpuArchEnum:
        """Return the kind of processor."""
        name = machine.machine().lower()
        if not name:
            return CpuArchEnum.UNKNOWN
        if name.startswith(("arm", "aarch")):
            return CpuArchEnum.ARM
        return _ARCHITECTURES.get(name, CpuArchEnum.OTHER)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Whether host memory can be pinned; modulm pins none."""
        return not in_wsl()

    @classmethod
    def inference_mode(cls) -> Any:
        """Return a context without gradients."""
        import torch

        return torch.inference_mode(mode=True)

    @classmethod
    def get_infinity_values(cls, dtype: "torch.dtype") -> tuple[float, float]:
        """Return what masks use."""
        return float("-inf"), float("inf")

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Whether layers of several kinds may share the cache."""
        return False

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Whether the device records graphs."""
        return False

    @classmethod
    def supports_fp8(cls) -> bool:
        """Whether the device multiplies 8-bit floats."""
        return False

    @classmethod
    def supports_mx(cls) -> bool:
        """Whether the device multiplies microscaled floats."""
        return False

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Whether attention is one operation to a compiler."""
        return False

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """Whether the device has a reduction of its own."""
        return False

    def __getattr__(self, key: str) -> Any:
        """Return torch's function of that name for this kind of device; None, with a warning, where it has none."""
        if key.startswith("__") and key.endswith("__"):
            raise AttributeError(key)
        import torch

        module = getattr(torch, self.device_type, None)
        if module is not None and hasattr(module, key):
            return getattr(module, key)
        _logger.warning_once("Current platform %s does not have '%s' attribute.", self.device_type, key)
        return None


class UnspecifiedPlatform(Platform):
    """No platform that vLLM has a name for."""

    _enum = PlatformEnum.UNSPECIFIED
    device_name = ""
    device_type = ""
