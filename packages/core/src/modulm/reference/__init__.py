"""Implementations in plain torch: slow, obvious, always there. What faster ones are measured against."""
