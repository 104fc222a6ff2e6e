"""What both of vLLM's parser managers do: names -> classes, kept in modulm's registry of their family."""

from collections.abc import Callable, Iterator, MutableMapping
from functools import partial
from typing import Any, ClassVar

from vllm.utils.import_utils import import_plugin

from modulm.errors import PluginError, UnknownName
from modulm.log import logger
from modulm.plugins import refs
from modulm.plugins.registry import registry

_log = logger("compat_vllm")


class Registered(MutableMapping[str, Any]):
    """What was registered in this process, as the dictionaries that vLLM's managers have; changing it registers.

    Classes are there as they are, or (`lazy`) those that are only named as (module, class).
    """

    def __init__(self, family: str, *, lazy: bool) -> None:
        self._family, self._lazy = family, lazy

    def _held(self) -> dict[str, Any]:
        held = registry(self._family).registrations().items()
        return {name: each.target for name, each in held if isinstance(each.target, str) is self._lazy}

    def __getitem__(self, name: str) -> Any:
        found = self._held()[name]
        return refs.split(found) if self._lazy else found

    def __setitem__(self, name: str, value: Any) -> None:
        found = registry(self._family)
        found.register(name, ":".join(value) if self._lazy else value, override=name in found)

    def __delitem__(self, name: str) -> None:
        if name not in self._held():
            raise KeyError(name)
        registry(self._family).restore(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __len__(self) -> int:
        return len(self._held())


class ParserManager:
    """Names of one family. A derived class gives finding and importing the names that they have in vLLM.

    Attributes:
        noun: "Tool parser".
        base: Where the class is that parsers derive from.
    """

    family: ClassVar[str]
    noun: ClassVar[str]
    base: ClassVar[str]

    @classmethod
    def register_module(
        cls, name: str | list[str] | None = None, force: bool = True, module: type | None = None
    ) -> type | Callable[[type], type]:
        """Register `module` by one or more names, or the class that this decorates; without a name by its own.

        Raises `KeyError` where the name is taken and `force` is false, `TypeError` for what is no parser.
        """
        if not isinstance(force, bool):
            raise TypeError(f"force must be a boolean, but got {type(force)}")
        return partial(cls._register, name, force) if module is None else cls._register(name, force, module)

    @classmethod
    def _register(cls, name: str | list[str] | None, force: bool, found: type) -> type:
        base = refs.resolve(cls.base, cls.noun)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise TypeError(f"module must be subclass of {base.__name__}, but got {type(found)}")
        for each in [name or found.__name__] if isinstance(name, str | None) else name:
            held = Registered(cls.family, lazy=False)
            if not force and each in held:
                raise KeyError(f"{each} is already registered.")
            held[each] = found
        return found

    @classmethod
    def register_lazy_module(cls, name: str, module_path: str, class_name: str) -> None:
        """Register a class by where it is, to be imported when it is asked for; one that is there goes before it."""
        if name not in Registered(cls.family, lazy=False):
            Registered(cls.family, lazy=True)[name] = (module_path, class_name)

    @classmethod
    def list_registered(cls) -> list[str]:
        """Return all names, sorted, modulm's own among them."""
        return registry(cls.family).names()

    @classmethod
    def _find(cls, name: str) -> Any:
        """Return the class of that name, as its author wrote it; of modulm's own parsers, one of vLLM's kind."""
        try:
            found = registry(cls.family).get(name)
        except UnknownName as error:
            raise KeyError(f"{cls.noun} '{name}' not found. Available: {', '.join(cls.list_registered())}") from error
        except PluginError as error:
            raise TypeError(str(error)) from error
        theirs = getattr(found, "plugin_class", None)
        if theirs is None:
            from modulm_compat_vllm.own_parsers import own_class  # it imports the classes that derive from this one's

            theirs = own_class(found)
        return theirs

    @classmethod
    def _import(cls, plugin_path: str) -> None:
        """Import a module by name, or else from a file; a failure is logged."""
        try:
            import_plugin(plugin_path)
        except Exception:
            _log.exception("Failed to load the %s plugin %r.", cls.noun.lower(), plugin_path)
