"""Structured output by llguidance. The backend is in `backend.py`."""
