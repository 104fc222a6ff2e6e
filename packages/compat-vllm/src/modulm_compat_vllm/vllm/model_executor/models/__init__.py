"""Model classes that plugins derive from, and the registry of architectures, which is modulm's."""

from modulm.plugins.models import ModelRegistry

__all__ = ["ModelRegistry"]
