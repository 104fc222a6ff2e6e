"""Model architectures: torch modules named as in checkpoints. Start at `llama.py`; `index.py` lists all."""
