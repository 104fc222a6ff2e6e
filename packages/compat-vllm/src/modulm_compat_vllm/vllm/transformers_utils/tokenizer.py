"""The name for a tokenizer in annotations, where older parser files look for it."""

from vllm.tokenizers import TokenizerLike as AnyTokenizer

__all__ = ["AnyTokenizer"]
