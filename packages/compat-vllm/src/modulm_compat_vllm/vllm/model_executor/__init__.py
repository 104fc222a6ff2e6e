"""Models. vLLM's layers are not here: models are built from modulm's."""
