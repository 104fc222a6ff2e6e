"""The `vllm` import names that plugins use, mapped onto modulm."""
