"""Thinking up to a line of dashes. Given by `--reasoning-parser-plugin`."""

from collections.abc import Sequence

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import DeltaMessage
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.tokenizers import TokenizerLike

MARK = "---"


@ReasoningParserManager.register_module(["dashes"])
class DashReasoningParser(ReasoningParser):
    """What stands before the mark is thinking."""

    def __init__(self, tokenizer: TokenizerLike, *args: object, **kwargs: object) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self.mark_ids = tokenizer.encode(MARK, add_special_tokens=False)

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the mark has been written; a prompt's own marks do not count, as it is followed by more."""
        return list(input_ids[-len(self.mark_ids) :]) == self.mark_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return the ids after the mark."""
        length = len(self.mark_ids)
        for start in range(len(input_ids) - length + 1):
            if input_ids[start : start + length] == self.mark_ids:
                return input_ids[start + length :]
        return []

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """Return thinking and answer of a whole text."""
        reasoning, mark, content = model_output.partition(MARK)
        return reasoning or None, content if mark else None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Return what is new; text that may be the beginning of the mark waits."""
        before, _ = self._read(previous_text)
        reasoning, content = self._read(current_text)
        known = self._read(previous_text)[1]
        new = DeltaMessage(reasoning=reasoning[len(before) :] or None, content=content[len(known) :] or None)
        return new if new.reasoning or new.content else None

    @staticmethod
    def _read(text: str) -> tuple[str, str]:
        reasoning, mark, content = text.partition(MARK)
        return (reasoning, content) if mark else (reasoning.rstrip("-"), "")
