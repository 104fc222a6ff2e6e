"""Speculators that need no second model: n-grams, in `ngram.py`."""
