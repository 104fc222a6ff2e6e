"""The room that owns tensors and devices: takes a `Plan`, returns a `StepResult`.

Knows no users, no text and no priorities. Start at `runner.py` (one step), then `batch.py` (what a step reads),
`sampler.py` (what it yields) and `worker.py` (how it is all put together).
"""
