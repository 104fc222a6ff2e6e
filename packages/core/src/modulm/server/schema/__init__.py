"""The JSON that clients send and get: msgspec structs, one file per family; the OpenAPI document is made of them.

Types only; ranges are judged by `SamplingParams` and by the front end, which name the field.
"""
