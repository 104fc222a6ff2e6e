"""Names of attention backends: an enum whose members can be registered, over modulm's registry `modulm.attention`.

A member of vLLM's own has the same name there in lower case (`FLASH_ATTN`: `flash_attn`), so that whatever replaces it
is found where modulm looks; `CUSTOM` and new names stay as they are written. Imports no torch and no backend.
"""

from collections.abc import Callable
from enum import Enum, EnumMeta
from typing import Any, TypeVar

from vllm.logger import init_logger

from modulm.plugins import refs
from modulm.plugins.registry import registry

_FAMILY = "modulm.attention"
_V1, _MODELS = "vllm.v1.attention.backends", "vllm.models"
_Class = TypeVar("_Class", bound=type)
_log = init_logger(__name__)


class _Growing(EnumMeta):
    """An enum that members can be added to; asking it for a name that it lacks is a `ValueError`, as in vLLM."""

    def __getitem__(cls, name: str) -> Any:
        if name not in cls.__members__:
            raise ValueError(f"Unknown attention backend: {name!r}. Valid options are: {', '.join(cls.__members__)}")
        return super().__getitem__(name)

    def register(cls, name: str, value: str | None = None) -> Any:
        """Add a member. Raises `ValueError` for a name that is taken or no identifier."""
        if not name.isidentifier() or name.startswith("_") or hasattr(cls, name):
            raise ValueError(f"{name!r} cannot be a new attention backend: it is taken, or no identifier.")
        member: Any = object.__new__(cls)  # type: ignore[arg-type]
        member._name_, member._value_, member.__objclass__ = name, value, cls
        setattr(cls, name, member)
        cls._member_map_[name] = member
        cls._member_names_.append(name)
        return member


_overrides: dict[Enum, str] = {}


class _Backends(Enum, metaclass=_Growing):
    """What members of both enums can do."""

    def get_path(self, include_classname: bool = True) -> str:
        """Return the class path, `module.Class`, or the module alone. Raises `ValueError` where there is none."""
        path = _overrides.get(self) or self.value
        if not path:
            raise ValueError(f"Backend {self.name} must be registered before use, by register_backend({self}, ...).")
        return str(path) if include_classname else refs.split(path)[0]

    def get_class(self) -> Any:
        """Import the class. Of vLLM's own backends none is here, which the error says."""
        module, name = refs.split(self.get_path())
        found: Any = __import__(module, fromlist=["_"])
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def is_overridden(self) -> bool:
        """Whether somebody registered a class for it."""
        return self in _overrides

    def clear_override(self) -> None:
        """Forget what was registered for it, in modulm's registry as well."""
        if _overrides.pop(self, None) is not None and isinstance(self, AttentionBackendEnum):
            registry(_FAMILY).restore(modulm_name(self), None)


class AttentionBackendEnum(_Backends):
    """vLLM's attention backends by name, with the class paths that they have there."""

    FLASH_ATTN = f"{_V1}.flash_attn.FlashAttentionBackend"
    FLASH_ATTN_DIFFKV = f"{_V1}.flash_attn_diffkv.FlashAttentionDiffKVBackend"
    TRITON_ATTN = f"{_V1}.triton_attn.TritonAttentionBackend"
    TRITON_ATTN_DIFFKV = f"{_V1}.triton_attn_diffkv.TritonAttentionDiffKVBackend"
    TRITON_FLASH_ATTN = f"{_V1}.triton_flash_attn.TritonFlashAttentionBackend"
    ROCM_ATTN = f"{_V1}.rocm_attn.RocmAttentionBackend"
    ROCM_SEGMENTED_ATTN = f"{_V1}.rocm_segmented_attn.RocmSegmentedAttentionBackend"
    ROCM_AITER_MLA = f"{_V1}.mla.rocm_aiter_mla.AiterMLABackend"
    ROCM_AITER_TRITON_MLA = f"{_V1}.mla.aiter_triton_mla.AiterTritonMLABackend"
    ROCM_AITER_FA = f"{_V1}.rocm_aiter_fa.AiterFlashAttentionBackend"
    ROCM_AITER_MLA_SPARSE = f"{_V1}.mla.rocm_aiter_mla_sparse.ROCMAiterMLASparseBackend"
    XPU_MLA_SPARSE = f"{_V1}.mla.xpu_mla_sparse.XPUMLASparseBackend"
    TORCH_SDPA = ""
    FLASHINFER = f"{_V1}.flashinfer.FlashInferBackend"
    TRITON_FLASHINFER = f"{_V1}.triton_flashinfer.TritonFlashInferBackend"
    FLASHINFER_MLA = f"{_V1}.mla.flashinfer_mla.FlashInferMLABackend"
    TOKENSPEED_MLA = f"{_V1}.mla.tokenspeed_mla.TokenspeedMLABackend"
    FLASHINFER_MLA_SPARSE = f"{_V1}.mla.flashinfer_mla_sparse.FlashInferMLASparseTRTLLMBackend"
    FLASHINFER_MLA_SPARSE_SM120 = f"{_V1}.mla.flashinfer_mla_sparse.FlashInferMLASparseSM120Backend"
    FLASHINFER_MLA_SPARSE_SM90 = (
        "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm90.FlashInferMLASparseSM90Backend"
    )
    TRITON_MLA = f"{_V1}.mla.triton_mla.TritonMLABackend"
    CUTLASS_MLA = f"{_V1}.mla.cutlass_mla.CutlassMLABackend"
    FLASHMLA = f"{_V1}.mla.flashmla.FlashMLABackend"
    FLASHMLA_SPARSE = f"{_V1}.mla.flashmla_sparse.FlashMLASparseBackend"
    FLASHMLA_SPARSE_DSV4 = f"{_MODELS}.deepseek_v4.sparse_mla.DeepseekV4FlashMLABackend"
    FLASHINFER_MLA_SPARSE_DSV4 = f"{_MODELS}.deepseek_v4.nvidia.flashinfer_sparse.DeepseekV4FlashInferMLASparseBackend"
    ROCM_FLASHMLA_SPARSE_DSV4 = f"{_MODELS}.deepseek_v4.amd.rocm.DeepseekV4ROCMAiterMLASparseBackend"
    FLASHMLA_SPARSE_DSV41 = f"{_MODELS}.deepseek_v41.sparse_mla.DeepseekV4FlashMLABackend"
    FLASHINFER_MLA_SPARSE_DSV41 = (
        "vllm.models.deepseek_v41.nvidia.flashinfer_sparse.DeepseekV4FlashInferMLASparseBackend"
    )
    FLASHMLA_MEGA_ATTN_DSV41 = f"{_MODELS}.deepseek_v41.sparse_mla.FlashMLAMegaAttnBackend"
    B12X = f"{_V1}.b12x.B12xPagedAttentionBackend"
    FLASH_ATTN_MLA = f"{_V1}.mla.flashattn_mla.FlashAttnMLABackend"
    FLASH_ATTN_MLA_SPARSE = f"{_V1}.mla.flashattn_mla_sparse.FlashAttnMLASparseBackend"
    MINIMAX_M3_SPARSE = f"{_MODELS}.minimax_m3.common.sparse_attention.MiniMaxM3SparseBackend"
    CUTLASS_MSA = f"{_MODELS}.minimax_m3.nvidia.sparse_attention_msa.MiniMaxM3SparseCutlassBackend"
    TRITON_MSA = f"{_MODELS}.minimax_m3.nvidia.sparse_attention_msa.MiniMaxM3SparseTritonBackend"
    NO_ATTENTION = f"{_V1}.no_attention.NoAttentionBackend"
    FLEX_ATTENTION = f"{_V1}.flex_attention.FlexAttentionBackend"
    HPC_ATTN = f"{_V1}.hpc_attn.HpcAttentionBackend"
    ROCM_AITER_UNIFIED_ATTN = f"{_V1}.rocm_aiter_unified_attn.RocmAiterUnifiedAttentionBackend"
    CPU_ATTN = f"{_V1}.cpu_attn.CPUAttentionBackend"
    CPU_MLA = f"{_V1}.mla.cpu_mla.CPUMLABackend"
    AMX_MLA = f"{_V1}.mla.amx_mla.AMXMLABackend"
    TURBOQUANT = f"{_V1}.turboquant_attn.TurboQuantAttentionBackend"
    ULTRAQUANT = f"{_V1}.ultraquant_attn.UltraQuantAttentionBackend"
    CUSTOM = None


class MambaAttentionBackendEnum(_Backends):
    """vLLM's state-space backends. modulm runs no such model, so they are recorded here and used by nobody."""

    MAMBA1 = f"{_V1}.mamba1_attn.Mamba1AttentionBackend"
    MAMBA2 = f"{_V1}.mamba2_attn.Mamba2AttentionBackend"
    SHORT_CONV = f"{_V1}.short_conv_attn.ShortConvAttentionBackend"
    LINEAR = f"{_V1}.linear_attn.LinearAttentionBackend"
    GDN_ATTN = f"{_V1}.gdn_attn.GDNAttentionBackend"
    CUSTOM = None


def modulm_name(backend: AttentionBackendEnum | str) -> str:
    """Return what a backend, given as a member or by name, is called in modulm's registry."""
    name = backend if isinstance(backend, str) else backend.name
    known = AttentionBackendEnum.__members__.get(name.upper())
    return name if known is None or not known.value or known in _added else name.lower()


_added: set[Enum] = set()


def register_backend(
    backend: AttentionBackendEnum | MambaAttentionBackendEnum | str,
    class_path: str | None = None,
    is_mamba: bool = False,
) -> Callable[[_Class], _Class]:
    """Register a class for a backend, new or known, by its path or as a decorator of the class.

    Raises `ValueError` for a new name that is taken or no identifier.
    """
    if isinstance(backend, str):
        kind = MambaAttentionBackendEnum if is_mamba else AttentionBackendEnum
        known = kind.__members__.get(backend)
        backend = known if known in _added else kind.register(backend)
        _added.add(backend)
    member = backend

    def take(path: str) -> None:
        if member in _added and _overrides.get(member, path) != path:
            raise ValueError(f"Attention backend {member.name!r} is registered already, as {_overrides[member]!r}.")
        _overrides[member] = path
        if isinstance(member, AttentionBackendEnum):
            registry(_FAMILY).register(modulm_name(member), path, override=True)
        else:
            _log.warning("%s=%r is registered, but modulm runs no state-space models: nobody uses it.", member, path)

    def decorator(cls: _Class) -> _Class:
        take(f"{cls.__module__}:{cls.__qualname__}")
        return cls

    if class_path is None:
        return decorator
    take(class_path)
    return lambda cls: cls
