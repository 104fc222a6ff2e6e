"""The name for what IO processors are made with."""

from typing import Any, Protocol


class BaseRenderer(Protocol):
    """Turns prompts into token ids; modulm's IO processors get what their caller has."""

    def get_tokenizer(self) -> Any:
        """Return the tokenizer."""
