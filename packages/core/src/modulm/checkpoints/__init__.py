"""Checkpoints on disk: where a model's name leads (`location`) and core's own format (`safetensors`).

Read by front end (config, tokenizer) and worker (tensors) alike, so it stands beside the rooms and knows neither.
"""
