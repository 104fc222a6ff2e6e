"""The native library, with a clear message where it cannot be loaded. Knows nothing of what is in it."""

import platform
import sys
from types import ModuleType


def native() -> ModuleType:
    """Return the native module. Raises `ImportError` that says what to do; its cause is chained."""
    try:
        from modulm_kernels_cpu import _native
    except ImportError as error:
        raise ImportError(
            f"The native library of modulm-kernels-cpu cannot be loaded on {sys.platform} {platform.machine()} with "
            f"Python {platform.python_version()}: {error}. Install it for this machine: pip install --force-reinstall "
            "--no-deps modulm-kernels-cpu; or do without it: --kernels torch.",
            name=error.name,
            path=error.path,
        ) from error
    return _native
