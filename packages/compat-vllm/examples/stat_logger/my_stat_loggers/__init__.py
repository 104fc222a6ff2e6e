"""Stat loggers whose numbers Prometheus reads from a port of their own: see `requests.py` and `tokens.py`."""
