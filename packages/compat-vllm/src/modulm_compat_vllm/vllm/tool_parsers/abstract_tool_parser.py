"""Tool parsers: the class to derive from and the manager that names them. They read responses of `modulm serve`.

How a parser of this kind meets modulm's contract: `modulm_compat_vllm/tool_parsers.py`. Those that were registered are
in modulm's registry, family `modulm.tool_parsers`, and nowhere else.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionToolsParam
from vllm.entrypoints.openai.engine.protocol import DeltaMessage, ExtractedToolCallInformation
from vllm.tokenizers import TokenizerLike

from modulm_compat_vllm.parser_manager import ParserManager, Registered
from modulm_compat_vllm.stand_in import only_stand_in

Tool: TypeAlias = ChatCompletionToolsParam


class ToolParser:
    """Finds tool calls in what a model writes; one object for each response.

    Attributes:
        prev_tool_call_arr: Calls found so far, each with "name" and "arguments"; what of those was not in
            `streamed_args_for_tool` is added when the text ends.
    """

    supports_required_and_named: bool = True

    def __init__(self, tokenizer: TokenizerLike, tools: list[Tool] | None = None) -> None:
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.current_tool_id: int = -1
        self.current_tool_name_sent: bool = False
        self.streamed_args_for_tool: list[str] = []
        self.model_tokenizer = tokenizer
        self.tools = tools

    @classmethod
    def modulm_class(cls) -> type:
        """Return what stands for this class in modulm's registries."""
        from modulm_compat_vllm.tool_parsers import ToolParserAdapter

        return only_stand_in(ToolParserAdapter, cls)

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self.model_tokenizer.get_vocab()

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Return the request, changed where the format needs it."""
        return request

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """Return what is in a whole text."""
        raise NotImplementedError("AbstractToolParser.extract_tool_calls has not been implemented!")

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ChatCompletionRequest,
    ) -> DeltaMessage | None:
        """Return what is certain now and was not before, or None."""
        raise NotImplementedError("AbstractToolParser.extract_tool_calls_streaming has not been implemented!")


class ToolParserManager(ParserManager):
    """Names of tool parsers."""

    family = "modulm.tool_parsers"
    noun = "Tool parser"
    base = f"{ToolParser.__module__}:ToolParser"
    tool_parsers = Registered(family, lazy=False)
    lazy_parsers = Registered(family, lazy=True)

    @classmethod
    def get_tool_parser(cls, name: str) -> type[ToolParser]:
        """Return a class. Raises `KeyError` for a name that is not there, `TypeError` for what is no parser."""
        return cls._find(name)

    @classmethod
    def import_tool_parser(cls, plugin_path: str) -> None:
        """Import a module, or a file, that registers parsers; a failure is logged."""
        cls._import(plugin_path)
