"""One module per engine, run as a child process by that engine's Python; the protocol is in `workload.py`."""
