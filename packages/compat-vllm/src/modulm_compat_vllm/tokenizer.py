"""The model's tokenizer as vLLM's parsers know tokenizers, which is as transformers' are."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from modulm.interfaces.parsers import TokenizerView

_made: "WeakKeyDictionary[Any, ParserTokenizer]" = WeakKeyDictionary()


class ParserTokenizer:
    """What parsers ask; anything else is asked of modulm's tokenizer."""

    def __init__(self, view: TokenizerView) -> None:
        self._view = view
        self._vocab: dict[str, int] | None = None

    @classmethod
    def of(cls, view: TokenizerView | None) -> "ParserTokenizer | None":
        """Return the one for a tokenizer: parsers are made for every response, the vocabulary once."""
        if view is None:
            return None
        found = _made.get(view)
        if found is None:
            found = _made[view] = cls(view)
        return found

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included."""
        return self._view.vocab_size

    def __len__(self) -> int:
        return self._view.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Return token -> id; not to be changed."""
        if self._vocab is None:
            pieces = ((self._view.id_to_piece(number), number) for number in range(self._view.vocab_size))
            added = {text: number for number, text in self._view.added_tokens.items()}
            self._vocab = {piece: number for piece, number in pieces if piece is not None} | added
        return self._vocab

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens."""
        return sorted(self._view.special_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        """Their texts."""
        return [self._view.added_tokens[number] for number in self.all_special_ids if number in self._view.added_tokens]

    def encode(self, text: str, add_special_tokens: bool = True, **ignored: Any) -> list[int]:
        """Return the ids of a text."""
        return self._view.encode(text, add_special_tokens)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **ignored: Any) -> str:
        """Return the text of ids, or of one."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._view.decode(ids, skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return tokens as the vocabulary spells them."""
        if isinstance(ids, int):
            return self._view.id_to_piece(ids)
        left_out = set(self._view.special_ids) if skip_special_tokens else set()
        return [self._view.id_to_piece(number) for number in ids if number not in left_out]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return ids of tokens, None for what is none."""
        vocab = self.get_vocab()
        return vocab.get(tokens) if isinstance(tokens, str) else [vocab.get(token) for token in tokens]

    def tokenize(self, text: str, **ignored: Any) -> list[str | None]:
        """Return the tokens of a text."""
        return [self._view.id_to_piece(number) for number in self._view.encode(text, False)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)
