"""modulm's HTTP server beside others, under the same load: `make bench-servers`. Start reading at `__main__.py`."""
