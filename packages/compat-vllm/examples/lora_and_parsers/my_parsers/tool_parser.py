"""Tool calls as lines: `CALL name {"json": "arguments"}`. Given by `--tool-parser-plugin`."""

import json
from collections.abc import Sequence

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.logger import init_logger
from vllm.tokenizers import TokenizerLike
from vllm.tool_parsers import ToolParser, ToolParserManager

logger = init_logger("vllm.my_parsers")
MARK = "CALL "


@ToolParserManager.register_module("lines")
class LineToolParser(ToolParser):
    """A line that begins with the mark is a call; the others are the answer."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        super().__init__(tokenizer)
        self.num_lines_read = 0

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """Return what is in a whole text."""
        lines = model_output.splitlines(keepends=True)
        calls = [call for line in lines if (call := self._call(line)) is not None]
        content = "".join(line for line in lines if self._call(line) is None)
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content=content or None)

    def _call(self, line: str) -> ToolCall | None:
        if not line.startswith(MARK):
            return None
        name, _, arguments = line.removeprefix(MARK).strip().partition(" ")
        try:
            json.loads(arguments)
        except ValueError:
            return None
        return ToolCall(type="function", function=FunctionCall(name=name, arguments=arguments))

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
        """Return the lines that have ended; the last one is read with the whole text."""
        lines = current_text.splitlines(keepends=True)
        ended = [line for line in lines if line.endswith("\n")][self.num_lines_read :]
        self.num_lines_read += len(ended)
        deltas, content = [], ""
        for line in ended:
            call = self._call(line)
            if call is None:
                content += line
                continue
            self.current_tool_id += 1
            logger.info("call %d of %s", self.current_tool_id, call.function.name)
            function = DeltaFunctionCall(name=call.function.name, arguments=call.function.arguments)
            deltas.append(
                DeltaToolCall(
                    index=self.current_tool_id,
                    type="function",
                    id=call.id,
                    function=function.model_dump(exclude_none=True),
                )
            )
        return DeltaMessage(content=content or None, tool_calls=deltas) if deltas or content else None
