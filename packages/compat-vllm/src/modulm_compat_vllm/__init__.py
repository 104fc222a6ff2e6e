"""The `vllm` import names that plugins use, mapped onto modulm, so that plugins written for vLLM run here.

Under `vllm/` stands a tree whose modules are imported as `vllm.*`: `finder.py` sees to that, from the start of every
Python process (a `.pth` file of this package calls it). A real vLLM always goes before it. This file is read at every
start and therefore imports nothing.
"""


def install() -> None:
    """Make `import vllm` find this package's tree in this process; does nothing where that is so already."""
    from modulm_compat_vllm import finder

    finder.install()


def status() -> dict[str, object]:
    """Say whether `import vllm` finds this package's tree, and if not, why. Imports no vllm.

    Returns `installed` (the finder is there), `serving` (it answers `import vllm`), `reason`, `version` (of the
    interface that is mirrored), `tree` and `real_vllm` (the folder or file of a real one, else None).
    """
    from modulm_compat_vllm import tree

    return tree.status()
