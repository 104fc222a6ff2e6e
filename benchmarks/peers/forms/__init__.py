"""What a form costs in each backend and in vLLM: children that measure it, for `benchmarks/structured_output.py`."""
