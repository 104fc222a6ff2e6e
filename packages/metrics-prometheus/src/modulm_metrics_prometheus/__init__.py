"""Prometheus metrics for modulm. The stat logger is in `logger.py`, what it exports in `catalogue.py`."""
