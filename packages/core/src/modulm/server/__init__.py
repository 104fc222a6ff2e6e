"""The HTTP room: OpenAI's words over any `AsyncLLM` that is handed in. Needs the extra `modulm-core[serve]`.

Knows HTTP, JSON, keys and connections; not batches, blocks or devices. Start reading at `app.py`; a request's way is
`completions.py` or `chat.py`, then `generation.py`, then `reply.py`.
"""
