"""As GLM's, with all calls in `<tool_calls>` and a suffix in each tag, `<arg_key:opensource>`: Tencent's Hy 3 and Hy 4.

Source: the chat templates of Hy3, with `<tool_sep>` behind a function's name, and Hy4, without. The suffix is the
checkpoint's own, so it is taken from the tokenizer.
"""

import re
from collections.abc import Iterable

from modulm.interfaces.parsers import ResponseContext, SamplingParams, TokenizerView
from modulm.interfaces.support import Accepted, Rejected, Support
from modulm_parsers_tools.glm45 import GLM45ToolParser

_TAG = re.compile(r"</?(tool_calls|tool_call|tool_sep|arg_key|arg_value)(:[^\s>]+)?>")


class HunyuanToolParser(GLM45ToolParser):
    """Reads both versions."""

    def __init__(self, context: ResponseContext) -> None:
        super().__init__(context)
        suffix = next((tag[2] or "" for tag in _tags(context.tokenizer)), "")
        self.block = (f"<tool_calls{suffix}>", f"</tool_calls{suffix}>")
        self.function_start, self.function_end = f"<tool_call{suffix}>", f"</tool_call{suffix}>"
        self.argument_start, self.argument_end = f"<arg_key{suffix}>", f"</arg_value{suffix}>"
        self.key_end, self.value_start = f"</arg_key{suffix}>", f"<arg_value{suffix}>"
        self.separator = f"<tool_sep{suffix}>"

    @classmethod
    def matches(cls, tokenizer: TokenizerView, chat_template: str) -> Support:
        """See `ResponseParser`."""
        is_in_template = "'<tool_calls{}>'" in chat_template and "'<arg_key{}>'" in chat_template
        if is_in_template or {"tool_calls", "arg_key"} <= {tag[1] for tag in _tags(tokenizer)}:
            return Accepted("there are <tool_calls> and <arg_key>, each with the checkpoint's suffix")
        return Rejected("neither tokenizer nor chat template has <tool_calls> and <arg_key> with a suffix")

    @classmethod
    def adjust(cls, params: SamplingParams, context: ResponseContext) -> SamplingParams:
        """Keep special tokens where the tags are such: which they are only the tokenizer knows."""
        tokenizer = context.tokenizer
        special = () if tokenizer is None else [tokenizer.added_tokens.get(each, "") for each in tokenizer.special_ids]
        return params.clone(skip_special_tokens=False) if any(map(_TAG.fullmatch, special)) else params


def _tags(tokenizer: TokenizerView | None) -> Iterable[re.Match[str]]:
    tokens = () if tokenizer is None else tokenizer.added_tokens.values()
    return [tag for tag in map(_TAG.fullmatch, tokens) if tag]
