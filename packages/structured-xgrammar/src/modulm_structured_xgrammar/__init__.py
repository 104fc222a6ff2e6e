"""Structured output for modulm by xgrammar."""
