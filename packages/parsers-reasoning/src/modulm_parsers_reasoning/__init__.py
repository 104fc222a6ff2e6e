"""Reasoning parsers for modulm: where models stop thinking and begin to answer; one small file per format."""
