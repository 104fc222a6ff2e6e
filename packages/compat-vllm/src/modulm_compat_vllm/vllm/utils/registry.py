"""`ExtensionManager`: names -> classes, for plugins that have extensions of their own."""

from collections.abc import Callable
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)


class ExtensionManager:
    """A table of classes."""

    def __init__(self) -> None:
        self.name2class: dict[str, type] = {}

    def register(self, name: str) -> Callable[[Kind], Kind]:
        """Return a decorator that enters a class."""

        def enter(entered: Kind) -> Kind:
            self.name2class[name] = entered
            return entered

        return enter

    def load(self, cls_name: str, *args: Any, **kwargs: Any) -> Any:
        """Return a new object of a class."""
        found = self.name2class.get(cls_name)
        if found is None:
            there = ", ".join(self.name2class) or "none"
            raise AssertionError(f"Extension class {cls_name} not found. There are: {there}.")
        return found(*args, **kwargs)
