"""The room between words and token ids: chat templates, tokenizer, admission, detokenising, stop strings, outputs.

Knows text and ids; not batches, blocks or devices. Start reading at `frontend.py`.
"""
