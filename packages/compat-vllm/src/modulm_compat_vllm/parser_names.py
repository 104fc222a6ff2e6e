"""What both of vLLM's parser managers do: names -> classes, kept in modulm's registry of their family."""

from functools import partial
from typing import Any

from vllm.utils.import_utils import import_plugin

from modulm.errors import PluginError, UnknownName
from modulm.log import logger
from modulm.plugins import refs
from modulm.plugins.registry import registry

_log = logger("compat_vllm")


class ParserNames:
    """Names of one family.

    Args:
        noun: "Tool parser".
        base: Where the class is that parsers derive from.
    """

    def __init__(self, family: str, noun: str, base: str) -> None:
        self._family = family
        self._noun = noun
        self._base = base

    def get(self, name: str) -> Any:
        """Return the class of that name, as its author wrote it."""
        try:
            found = registry(self._family).get(name)
        except UnknownName as error:
            raise KeyError(f"{self._noun} '{name}' not found. Available: {', '.join(self.all())}") from error
        except PluginError as error:
            raise TypeError(str(error)) from error
        own = getattr(found, "plugin_class", None)
        if own is None:
            raise TypeError(
                f"{self._noun} {name!r} is {found.__module__}.{found.__qualname__}, written for modulm's interface: no "
                "class of vLLM's kind. Choose it by its name, and derive from another."
            )
        return own

    def all(self) -> list[str]:
        """Return all names, sorted."""
        return registry(self._family).names()

    def register_module(self, name: Any, force: bool, module: Any) -> Any:
        """Register a class, or return what registers the class that it decorates."""
        if not isinstance(force, bool):
            raise TypeError(f"force must be a boolean, but got {type(force)}")
        if module is not None:
            return self._register(name, force, module)
        return partial(self._register, name, force)

    def _register(self, name: Any, force: bool, found: Any) -> Any:
        base = refs.resolve(self._base, self._noun)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise TypeError(f"module must be subclass of {base.__name__}, but got {type(found)}")
        for each in [name or found.__name__] if isinstance(name, str | None) else name:
            held = registry(self._family).registrations().get(each)
            if not force and held is not None and not isinstance(held.target, str):
                raise KeyError(f"{each} is already registered.")
            self._put(each, found)
        return found

    def register_lazy(self, name: str, module_path: str, class_name: str) -> None:
        """Register a class by where it is, unless the name is taken by a class that is there."""
        held = registry(self._family).registrations().get(name)
        if held is None or isinstance(held.target, str):
            self._put(name, f"{module_path}:{class_name}")

    def _put(self, name: str, target: Any) -> None:
        found = registry(self._family)
        found.register(name, target, override=name in found)

    def import_plugin(self, plugin_path: str) -> None:
        """Import a module by name, or else from a file; a failure is logged."""
        try:
            import_plugin(plugin_path)
        except Exception:
            _log.exception("Failed to load the %s plugin %r.", self._noun.lower(), plugin_path)
