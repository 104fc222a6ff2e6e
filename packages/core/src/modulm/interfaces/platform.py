"""Platforms (group `vllm.platform_plugins`, and core's own): the device a worker runs on.

An entry point of the group is a function without arguments that returns the class path of a `Platform`
("pkg.mod.Class") or None for "not here": it must be cheap and import nothing heavy, as it is called on every machine.
The class is made once, without arguments, in the process that has the engine; a front end beside it asks no platform.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from modulm.interfaces.support import Accepted, Support

if TYPE_CHECKING:
    import torch

    from modulm.config import EngineConfig
    from modulm.interfaces.attention import AttentionSpec


class Platform(ABC):
    """One kind of device, called by `resolve.py` before anything is built and by the worker afterwards."""

    name: ClassVar[str]
    device_type: ClassVar[str]
    """torch's device type: "cpu", "cuda", ..."""
    supported_dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    """In order of preference; a checkpoint's dtype that is not among them falls back to the last."""
    attention_backends: ClassVar[tuple[str, ...]] = ()
    """Names of `modulm.attention`, best first."""
    kernels: ClassVar[tuple[str, ...]] = ()
    """Names of `modulm.kernels`, best first."""

    def __init__(self) -> None:
        """Made without arguments, once per process."""

    @abstractmethod
    def device(self, index: int = 0) -> "torch.device":
        """Return the torch device of local rank `index`."""

    def device_name(self, index: int = 0) -> str:
        """Return torch's name of that device: "cpu", "cuda:0"."""
        return str(self.device(index))

    @abstractmethod
    def available_memory_bytes(self, index: int = 0) -> int:
        """Return memory that may still be allocated on the device."""

    @abstractmethod
    def total_memory_bytes(self, index: int = 0) -> int:
        """Return the device's memory."""

    def default_dtype(self, checkpoint_dtype: str) -> str:
        """Return the dtype to compute in when the user leaves it to us."""
        return checkpoint_dtype if checkpoint_dtype in self.supported_dtypes else self.supported_dtypes[-1]

    def attention_backends_for(self, spec: "AttentionSpec") -> tuple[str, ...]:
        """Return names of `modulm.attention` for such a layer, best first; asked first when the choice is automatic."""
        return self.attention_backends

    def supports_quantization(self, name: str) -> Support:
        """Say whether checkpoints of this quantization may run here."""
        return Accepted()

    def check_and_update_config(self, config: "EngineConfig") -> None:
        """Look at, or change in place, the engine's configuration; raise `ConfigError` to refuse it. Called first."""

    def manual_seed(self, seed: int) -> None:
        """Seed the device's global generators."""

    def synchronize(self) -> None:
        """Wait until the device has finished its queue."""
