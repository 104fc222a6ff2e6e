"""A tokenizer that waits until text comes: what is known before, who makes it, and what a broken one costs."""

import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from tokenizers import models

from modulm.errors import CheckpointError
from modulm.frontend.tokenizer import LateTokenizer, Tokenizer
from modulm.interfaces.checkpoint import Checkpoint, TokenizerData

TEXT = "The quick brown fox 我 <|im_end|>"


class Only:
    """A checkpoint that has nothing but a tokenizer."""

    def __init__(self, data):
        self.tokenizer = lambda: data

    tokenizer_eos_ids = Checkpoint.tokenizer_eos_ids


def data_of(both, **config):
    return TokenizerData(tokenizer_json=both[1].to_str(), config=config)


def test_it_is_the_tokenizer_once_somebody_asks(both):
    data = data_of(both, bos_token="<s>", eos_token="</s>")
    late, plain = LateTokenizer(lambda: Tokenizer.from_data(data), 7), Tokenizer.from_data(data)
    assert late.eos_token_id == 7  # as it was told
    ids = late.encode(TEXT)
    assert ids == plain.encode(TEXT)
    assert (late.decode(ids), late.token_text(ids[0])) == (plain.decode(ids), plain.token_text(ids[0]))
    assert late.eos_token_id == plain.eos_token_id == both[1].token_to_id("</s>")
    assert late.special_ids == plain.special_ids
    assert pickle.loads(pickle.dumps(late)).encode(TEXT) == ids
    assert not hasattr(late, "no_such_thing")


def test_the_end_of_sequence_is_what_the_library_says(both):
    """Of several kinds; where it stands among the added tokens, it is told without the library."""
    data = data_of(both, eos_token="</s>")
    expected = both[1].token_to_id("</s>")
    added = both[1].get_added_tokens_decoder()
    assert Only(data).tokenizer_eos_ids() == ([expected] if expected in added else None)


def test_no_end_and_one_that_only_the_library_finds():
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "end": 1}, merges=[]))
    assert Only(TokenizerData(tokenizer_json=inner.to_str())).tokenizer_eos_ids() == []
    assert Only(TokenizerData(tokenizer_json=inner.to_str(), config={"eos_token": None})).tokenizer_eos_ids() == []
    assert Only(TokenizerData(tokenizer_json=inner.to_str(), config={"eos_token": "end"})).tokenizer_eos_ids() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"added_tokens": 5}', '{"added_tokens": [{"content": "x"}]}', '{"added_tokens": [5]}']
)
def test_what_is_no_tokenizer_is_left_to_the_library(text):
    assert Only(TokenizerData(tokenizer_json=text, config={"eos_token": "x"})).tokenizer_eos_ids() is None


def test_it_is_made_once_however_many_ask(bpe):
    data = TokenizerData(tokenizer_json=bpe._inner.to_str())
    everyone, builders = threading.Barrier(8), []

    def build():
        builders.append(threading.get_ident())
        return Tokenizer.from_data(data)

    late = LateTokenizer(build, None)

    def ask(_):
        everyone.wait(timeout=30)
        return late.encode(TEXT, add_special_tokens=False)

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, range(8)))
    assert len(builders) == 1
    assert answers == [bpe.encode(TEXT, add_special_tokens=False)] * 8


def test_a_broken_one_fails_whoever_asks_and_may_be_mended(bpe):
    texts = [json.dumps({"model": {"type": "no such"}}), "{", bpe._inner.to_str()]
    late = LateTokenizer(lambda: Tokenizer.from_data(TokenizerData(tokenizer_json=texts.pop(0))), 1)
    for ask in (lambda: late.encode("x"), lambda: late.vocab_size):
        with pytest.raises(CheckpointError, match="cannot be read by the tokenizers library"):
            ask()
    assert late.eos_token_id == 1
    assert late.encode("fox", False) == bpe.encode("fox", False)


def test_what_is_not_asked_for_is_not_imported():
    """Megabytes each: the library, OpenSSL behind `hashlib`, 8-bit floats."""
    code = "import sys, modulm.launch, modulm.llm; print({'tokenizers', 'hashlib', 'ml_dtypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
