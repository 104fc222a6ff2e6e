"""Plugins: what is installed, what VLLM_PLUGINS allows, and one registry per thing that can be replaced.

Knows entry points, names and reasons; knows no room and imports no torch. A reader's way: `discovery.py` (metadata) ->
`policy.py` (VLLM_PLUGINS) -> `registry.py` (names to objects) -> `choose.py` (which of them), and `bootstrap.py`, which
every kind of process calls once.
"""
