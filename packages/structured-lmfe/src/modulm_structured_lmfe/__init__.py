"""Structured output for modulm by lm-format-enforcer: JSON Schema, regular expressions, choices."""
