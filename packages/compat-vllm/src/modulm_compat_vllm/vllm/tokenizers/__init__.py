"""The name for a tokenizer in annotations."""

from typing import Any, Protocol


class TokenizerLike(Protocol):
    """What parsers may ask of a tokenizer here; modulm's own, in `modulm_compat_vllm/tokenizer.py`, has it."""

    vocab_size: int
    all_special_ids: list[int]
    all_special_tokens: list[str]

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id, tokens as the vocabulary spells them."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
