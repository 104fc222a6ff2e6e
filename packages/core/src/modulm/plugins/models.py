"""`ModelRegistry`: vLLM's way to register model architectures, over the registry of family `modulm.models`.

Registering a string imports nothing. Knows no model and imports no torch: a class can only derive from
`torch.nn.Module` where torch has been imported already.
"""

import sys
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from modulm.errors import ConfigError, ModulmError, PluginError, SettingError, UnknownName, did_you_mean
from modulm.log import logger
from modulm.plugins.families import describe
from modulm.plugins.records import is_strict
from modulm.plugins.registry import Registry, registry

_log = logger("plugins")


class _ModelRegistry:
    """Architecture names (as in config.json) and the classes that implement them."""

    @property
    def _registry(self) -> Registry:
        return registry("modulm.models")

    def register_model(self, model_arch: str, model_cls: type | str) -> None:
        """Register an architecture; one that is there already is replaced, which is logged.

        Args:
            model_arch: The name in config.json's `architectures`.
            model_cls: "module:Class", imported when a checkpoint asks for it, or the class.

        Raises:
            TypeError: The name is no string, or the class no `torch.nn.Module`.
            ValueError: The string does not have exactly one colon with something on both sides.
        """
        if not isinstance(model_arch, str):
            raise TypeError(f"model_arch={model_arch!r} must be a string, not {describe(model_arch)}.")
        if isinstance(model_cls, str):
            if model_cls.count(":") != 1 or not all(model_cls.split(":")):
                raise ValueError(f"model_cls={model_cls!r}: expected a string in the format '<module>:<class>'.")
        elif not _is_module_class(model_cls):
            raise TypeError(
                f"model_cls of {model_arch!r} is {describe(model_cls)}, but must be a string or a class that derives "
                "from torch.nn.Module."
            )
        self._registry.register(model_arch, model_cls, override=True)

    def get_supported_archs(self) -> AbstractSet[str]:
        """Return the names of all architectures that can be asked for."""
        return self._registry.references.keys()

    def find(self, architectures: Iterable[str]) -> tuple[str, str] | None:
        """Return (name, reference) of the first that is registered; None where that is a class, or there is none."""
        references = self._registry.references
        name = next((name for name in architectures if name in references), None)
        reference = references.get(name) if name is not None else None
        return (name, reference) if name is not None and isinstance(reference, str) else None

    def resolve_model_cls(self, architectures: str | Iterable[str], model_config: Any = None) -> tuple[type, str]:
        """Return (class, name) of the first architecture that loads.

        Raises:
            UnknownName: None of them is registered; the message lists those that are.
            NotInstalled, Broken, Incompatible, ConfigError: What keeps the first known one from serving, when no
                other serves; if strict, at once.
        """
        names = [architectures] if isinstance(architectures, str) else list(architectures)
        failure: ModulmError | None = None
        for name in names:
            try:
                return self._registry.get(name), name
            except UnknownName:
                continue
            except SettingError:
                raise
            except (ConfigError, PluginError) as error:
                if is_strict():
                    raise
                _log.warning("%s", error, exc_info=error)
                failure = failure or error
        if failure is not None:
            raise failure
        supported = sorted(self.get_supported_archs())
        hint = "".join(did_you_mean(name, supported) for name in names)
        raise UnknownName(
            f"Model architectures {names} are not supported for now. Supported architectures: "
            f"{', '.join(supported) or 'none'}.{hint} A plugin can add one, through vllm.general_plugins or "
            "modulm.models."
        )


def _is_module_class(found: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, type) and issubclass(found, torch.nn.Module)


ModelRegistry = _ModelRegistry()
