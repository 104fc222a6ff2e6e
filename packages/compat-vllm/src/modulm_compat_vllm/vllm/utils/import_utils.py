"""Importing what a string names."""

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any


def resolve_obj_by_qualname(qualname: str) -> Any:
    """Return what "module.Name" names."""
    module, _, name = qualname.rpartition(".")
    return getattr(import_module(module), name)


def import_from_path(module_name: str, file_path: str | os.PathLike[str]) -> ModuleType:
    """Import a file as a module of that name."""
    spec = spec_from_file_location(module_name, file_path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {module_name!r}")
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def import_plugin(plugin: str) -> ModuleType:
    """Import a module by name or, where there is none of that name, a file, as a module named like the file."""
    try:
        return import_module(plugin)
    except ModuleNotFoundError:
        if not os.path.isfile(plugin):
            raise
        return import_from_path(os.path.splitext(os.path.basename(plugin))[0], plugin)
