"""Thinking between two tokens, such as <think> and </think>: what most reasoning parsers derive from."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import DeltaMessage
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from vllm.tokenizers import TokenizerLike


class BaseThinkingReasoningParser(ReasoningParser):
    """A derived class says the two tokens, which must be in the vocabulary. Text without the first is all answer."""

    starts_with_reasoning: bool = False
    """Whether thinking has begun already where the first token is missing: many templates write it into the prompt."""

    def __init__(self, tokenizer: TokenizerLike, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        if not self.model_tokenizer:
            raise ValueError("A reasoning parser needs the model's tokenizer: pass it to the constructor.")
        missing = [token for token in (self.start_token, self.end_token) if token not in self.vocab]
        if missing:
            raise RuntimeError(
                f"{type(self).__name__} reasoning parser could not locate think start/end tokens in the tokenizer: "
                f"{', '.join(missing)} is not there. Use a parser that fits the model."
            )
        self.start_token_id = self.vocab[self.start_token]
        self.end_token_id = self.vocab[self.end_token]

    @property
    @abstractmethod
    def start_token(self) -> str:
        """The token before the thinking."""

    @property
    @abstractmethod
    def end_token(self) -> str:
        """The token after it."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """See base class: of the two tokens, the last one says."""
        for token in reversed(input_ids):
            if token in (self.start_token_id, self.end_token_id):
                return bool(token == self.end_token_id)
        return False

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """See base class."""
        if self.end_token_id not in input_ids:
            return []
        return input_ids[input_ids.index(self.end_token_id) + 1 :]

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """See base class. A text that does not come to the end token is all thinking."""
        _, started, rest = model_output.partition(self.start_token)
        text = rest if started else model_output
        reasoning, ended, content = text.partition(self.end_token)
        return reasoning, (content or None) if ended else None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """See base class."""
        if len(delta_token_ids) == 1 and delta_token_ids[0] in (self.start_token_id, self.end_token_id):
            return None  # whatever text comes with it is the mark's
        if self.end_token_id in previous_token_ids:
            return DeltaMessage(content=delta_text)
        started = self.starts_with_reasoning or self.start_token_id in current_token_ids
        if not started:
            return DeltaMessage(content=delta_text)
        _, mark, after = delta_text.partition(self.start_token)
        text = after if mark else delta_text
        if self.end_token_id not in delta_token_ids:
            return DeltaMessage(reasoning=text)
        reasoning, _, content = text.partition(self.end_token)
        return DeltaMessage(reasoning=reasoning or None, content=content or None)
