"""The engine room: who runs next, with which blocks. Knows counts, blocks, budgets, priorities; never text or tensors.

Start at `loop.py`.
"""
