"""modulm beside other engines on the same weights and threads: `make bench-peers`. Start reading at `__main__.py`."""
