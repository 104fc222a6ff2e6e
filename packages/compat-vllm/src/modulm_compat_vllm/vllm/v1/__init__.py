"""The second generation of vLLM's engine: of its modules those that plugins import."""
