"""`<|START_ACTION|>[{"tool_name": ..., "parameters": {...}}, ...]<|END_ACTION|>`: Cohere's Command R7B and A.

Source: the tool use chat templates of c4ai-command-r7b-12-2024 and command-a-03-2025, with answers in
`<|START_RESPONSE|>`, and the later ones' with answers in `<|START_TEXT|>`. `tool_call_id` counts calls for the model
alone: the templates count again, so calls get ids of ours.
"""

from modulm_parsers_tools.json_calls import MarkedParser


class CohereCommandToolParser(MarkedParser):
    """A list between two tokens."""

    starts, ends = ("<|START_ACTION|>",), ("<|END_ACTION|>",)
    frames = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
    special_tokens = (*starts, *ends, *frames)
    name_key = "tool_name"
