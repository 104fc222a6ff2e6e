"""`<ifm|think>...</ifm|think>` and two shorter ways to think: K2 Horizon.

Source: its chat template, which raises for a `reasoning_effort` other than high, medium and low.
"""

from modulm_parsers_reasoning.tagged import TaggedReasoningParser

_TAGS = {"high": "think", "medium": "think_fast", "low": "think_faster"}


class K2HorizonReasoningParser(TaggedReasoningParser):
    """Everything is thinking until the end tag or a call of a tool; the effort asked for names the tags."""

    start_marker, end_marker = "<ifm|think>", "</ifm|think>"
    special_tokens = tuple(f"<{slash}ifm|{tag}>" for tag in _TAGS.values() for slash in ("", "/"))
    starts_open = True
    switches = ()
    also_end = ("<ifm|tool_calls>",)

    def pairs(self) -> dict[str, str]:
        """See `TaggedReasoningParser`; that of the request's effort comes first."""
        usual = _TAGS.get(str(self.context.template_kwargs.get("reasoning_effort")), "think")
        tags = sorted(_TAGS.values(), key=lambda tag: tag != usual)
        return {f"<ifm|{tag}>": f"</ifm|{tag}>" for tag in tags}
