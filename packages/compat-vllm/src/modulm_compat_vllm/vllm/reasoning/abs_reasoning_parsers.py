"""Reasoning parsers: the class to derive from and the manager that names them. They read responses of `modulm serve`.

How a parser of this kind meets modulm's contract: `modulm_compat_vllm/reasoning_parsers.py`. Those that were registered
are in modulm's registry, family `modulm.reasoning_parsers`, and nowhere else.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import DeltaMessage
from vllm.tokenizers import TokenizerLike

from modulm_compat_vllm.parser_manager import ParserManager, Registered
from modulm_compat_vllm.stand_in import only_stand_in


class ReasoningParser(ABC):
    """Tells thinking from answer; one object for each response."""

    def __init__(self, tokenizer: TokenizerLike, *args: Any, **kwargs: Any) -> None:
        self.model_tokenizer = tokenizer

    @classmethod
    def modulm_class(cls) -> type:
        """Return what stands for this class in modulm's registries."""
        from modulm_compat_vllm.reasoning_parsers import ReasoningParserAdapter

        return only_stand_in(ReasoningParserAdapter, cls)

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self.model_tokenizer.get_vocab()

    @abstractmethod
    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the thinking is over after these ids, of a prompt or of a response so far."""

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Say the same, knowing which ids are new."""
        return self.is_reasoning_end(input_ids)

    @abstractmethod
    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return the ids of the answer."""

    @abstractmethod
    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """Return thinking and answer of a whole text."""

    @abstractmethod
    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Return what is certain now and was not before, or None."""

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Return the request, changed where the format needs it."""
        return request


class ReasoningParserManager(ParserManager):
    """Names of reasoning parsers."""

    family = "modulm.reasoning_parsers"
    noun = "Reasoning parser"
    base = f"{ReasoningParser.__module__}:ReasoningParser"
    reasoning_parsers = Registered(family, lazy=False)
    lazy_parsers = Registered(family, lazy=True)

    @classmethod
    def get_reasoning_parser(cls, name: str) -> type[ReasoningParser]:
        """Return a class. Raises `KeyError` for a name that is not there, `TypeError` for what is no parser."""
        return cls._find(name)

    @classmethod
    def import_reasoning_parser(cls, plugin_path: str) -> None:
        """Import a module, or a file, that registers parsers; a failure is logged."""
        cls._import(plugin_path)
