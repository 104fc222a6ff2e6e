"""Structured output for modulm by outlines-core: regular expressions, choices, JSON Schema."""
