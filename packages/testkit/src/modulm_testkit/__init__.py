"""Conformance tests for plugins of modulm: a suite per contract."""
