"""`import vllm` is answered by `tree.py`. This file is read at every start of Python: it is short and imports little.

Knows names only; where to look next: `tree.py`.
"""

import os
import sys

TYPE_CHECKING = False  # importing typing for it would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

SWITCH = "MODULM_COMPAT_VLLM"


class Finder:
    """In front of the other finders, as only so a folder called `vllm` in the working directory can be passed over."""

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: object = None
    ) -> "ModuleSpec | None":
        """Return where `vllm` or a module below it is; None for any other name, or where a real vLLM has it."""
        if fullname != "vllm" and not fullname.startswith("vllm."):
            return None
        from modulm_compat_vllm import tree

        return tree.find(fullname, path)


FINDER = Finder()


def install() -> None:
    """Put the finder in its place, unless it is there."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def at_start() -> None:
    """Install the finder, unless MODULM_COMPAT_VLLM=0 says not to. Called by the `.pth` file."""
    if os.environ.get(SWITCH, "").strip().lower() not in ("0", "false", "no", "off"):
        install()
