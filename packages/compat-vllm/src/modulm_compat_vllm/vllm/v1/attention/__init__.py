"""Attention backends: their contract (`backend.py`) and the registry of their names (`backends/registry.py`)."""
