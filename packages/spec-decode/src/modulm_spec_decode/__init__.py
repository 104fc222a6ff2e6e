"""Speculative decoding for modulm: drafts by looking up n-grams and suffixes."""
