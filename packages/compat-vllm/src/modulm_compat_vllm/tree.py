"""The modules under `vllm/`, found under the name `vllm`: one module object for each name.

Refuses where another finder has a real vLLM, looking for it without importing it. What plugins import and the tree
lacks is an error that says so. Called by `finder.py`.
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType

from modulm_compat_vllm.finder import FINDER, SWITCH

NAME = "vllm"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
VERSION = "0.32.0"
"""Of the vLLM whose interface the tree mirrors."""
_HINTS = {
    "vllm.model_executor.layers": " A model here is built from modulm's layers: derive from one of the classes in "
    "vllm.model_executor.models, or write the model for modulm (modulm.interfaces.model, modulm.nn).",
}
_log = logging.getLogger("modulm.compat_vllm")


def find(fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Return where `vllm` or a module below it is; None where a real vLLM has it.

    Raises `ModuleNotFoundError`, saying what there is, for a name under ours that the tree lacks.
    """
    if fullname == NAME:
        return _root()
    if not _is_loaded():
        return None
    spec = PathFinder.find_spec(fullname, path)
    if spec is None:
        raise _missing(fullname)
    if spec.submodule_search_locations is None:
        # An empty package: `from vllm.logger import unknown` then asks for a module `vllm.logger.unknown`, and thereby
        # us, who can say more than that the name cannot be imported.
        spec.submodule_search_locations = []
    return spec


def version() -> str:
    """Return what `vllm.__version__` is: MODULM_COMPAT_VLLM_VERSION, or that of the interface mirrored."""
    return os.environ.get("MODULM_COMPAT_VLLM_VERSION", "").strip() or VERSION


def status() -> dict[str, object]:
    """See `modulm_compat_vllm.status`."""
    real, installed, reason = real_vllm(), FINDER in sys.meta_path, ""
    if real is not None:
        reason = f"a real vLLM goes before it: {real}"
    elif not installed:
        reason = f"the finder is not installed in this process ({SWITCH}={os.environ.get(SWITCH, '')!r})"
    return {
        "installed": installed,
        "serving": installed and real is None,
        "reason": reason,
        "version": version(),
        "tree": FOLDER,
        "real_vllm": real,
    }


def real_vllm() -> str | None:
    """Return where a real vLLM would be imported from, or None; imports nothing of it.

    A folder called `vllm` without an `__init__.py` is none: such a one stands in many a working directory.
    """
    if NAME in sys.modules and not _is_loaded():
        return str(getattr(sys.modules[NAME], "__file__", None) or "in this process")
    for finder in sys.meta_path:
        if finder is FINDER or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(NAME, None)
        if spec is not None and spec.loader is not None and spec.origin is not None:
            return str(spec.origin)
    return None


def _root() -> ModuleSpec | None:
    real = real_vllm()
    if real is not None:
        _log.debug("import vllm is left to the real one, %s.", real)
        return None
    return spec_from_file_location(NAME, os.path.join(FOLDER, "__init__.py"), submodule_search_locations=[FOLDER])


def _is_loaded() -> bool:
    return list(getattr(sys.modules.get(NAME), "__path__", [])) == [FOLDER]


def _missing(fullname: str) -> ModuleNotFoundError:
    """Return the error for what the tree lacks. It bears no `name`: with one, `from a import b` would drop it."""
    from modulm.errors import did_you_mean

    parent = fullname.rpartition(".")[0]
    there = _names(parent)
    hint = _HINTS.get(fullname) or did_you_mean(fullname, [f"{parent}.{name}" for name in there])
    return ModuleNotFoundError(
        f"{fullname!r} is not here: modulm-compat-vllm offers the part of vLLM {VERSION}'s names that it maps onto "
        f"modulm, and this is not among them. {parent!r} has: {', '.join(there) or 'nothing'}.{hint} Leave the plugin "
        f"that imports it out (MODULM_DISABLE_PLUGINS), or see the package's README for what is offered."
    )


def _names(parent: str) -> list[str]:
    """Return the public names that a module says or defines, and the modules inside it."""
    module = sys.modules[parent]
    values = {name: value for name, value in vars(module).items() if not isinstance(value, ModuleType)}
    own = [name for name, value in values.items() if getattr(value, "__module__", parent) == parent]
    names = set(getattr(module, "__all__", own))
    for folder in getattr(module, "__path__", []):
        names.update(entry.partition(".")[0] for entry in os.listdir(folder))
    return sorted(name for name in names if not name.startswith("_"))
