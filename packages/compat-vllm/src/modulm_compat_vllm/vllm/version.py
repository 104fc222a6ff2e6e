"""The version of the vLLM interface that is mirrored here; MODULM_COMPAT_VLLM_VERSION sets another."""

from vllm import __version__, __version_tuple__

__all__ = ["__version__", "__version_tuple__"]
