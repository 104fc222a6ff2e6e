"""The registry of attention backends. vLLM's own backends are not here; modulm's are `modulm plugins list`'s."""
