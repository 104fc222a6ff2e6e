"""modulm's HTTP server under load for half an hour: `make soak`. Start reading at `__main__.py`."""
