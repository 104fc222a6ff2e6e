"""Encoding and decoding equal the tokenizers library's; flags, special tokens and bad words as vLLM has them."""

import json

import pytest
from tokenizers import processors

from modulm.errors import CheckpointError, RequestError
from modulm.frontend.tokenizer import Tokenizer
from modulm.interfaces.checkpoint import TokenizerData


def from_inner(inner, **config):
    return Tokenizer.from_data(TokenizerData(tokenizer_json=inner.to_str(), config=config))


def test_encode_and_decode_equal_the_library(both):
    ours, library = both
    for text in ("the quick dog, 😊 über", "", "a b <tool>é"):
        for special in (True, False):
            assert ours.encode(text, special) == library.encode(text, add_special_tokens=special).ids
        assert ours.encode_batch([text, "dog"]) == [ours.encode(text), ours.encode("dog")]
        ids = ours.encode(text)
        assert ours.decode(ids) == library.decode(ids)


def test_special_tokens_and_sizes(bpe, sp):
    assert (bpe.bos_token_id, bpe.eos_token_id) == (0, 1)
    assert bpe.special_ids == {0, 1, 2, 3} and sp.special_ids == {0, 1, 2}
    assert bpe.vocab_size == len({bpe.id_to_piece(i) for i in range(bpe.vocab_size)})
    assert bpe.id_to_piece(bpe.vocab_size) is None
    assert bpe.named_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({}, ["dog"]),
        ({"add_bos_token": True}, ["<s>", "dog"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<s>", "dog", "</s>"]),
        ({"add_bos_token": False}, ["dog"]),
    ],
)
def test_bos_and_eos_flags(bpe, config, want):
    ours = from_inner(bpe._inner, bos_token="<s>", eos_token="</s>", **config)
    dog = ours.encode("dog", add_special_tokens=False)
    want_ids = [i for text in want for i in (dog if text == "dog" else [ours._inner.token_to_id(text)])]
    assert ours.encode("dog") == ours.encode_batch(["dog", "x"])[0] == want_ids


def test_the_flag_does_not_double_what_the_post_processor_adds(sp):
    assert from_inner(sp._inner, bos_token="<s>", add_bos_token=True).encode("dog") == sp.encode("dog")
    assert sp.encode("dog")[0] == 1 and sp.encode("") == [1]


def test_truncation_and_padding_stored_in_the_file_are_ignored(bpe):
    stored = json.loads(bpe._inner.to_str())
    stored["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    ours = Tokenizer.from_data(TokenizerData(tokenizer_json=json.dumps(stored)))
    assert len(ours.encode("the quick brown fox jumps")) > 2


def test_a_named_token_is_special_even_where_the_file_does_not_say_so(sp):
    stored = json.loads(sp._inner.to_str())
    stored["added_tokens"] = []
    stored["post_processor"] = None
    ours = Tokenizer.from_data(
        TokenizerData(tokenizer_json=json.dumps(stored), config={"eos_token": "</s>", "pad_token": "<nowhere>"})
    )
    assert ours.eos_token_id == 2 and 2 in ours.special_ids and ours.vocab_size < sp.vocab_size
    assert ours.encode("x</s>", add_special_tokens=False)[-1] == 2


def test_decoding_keeps_spaces_before_punctuation(bpe):
    ours = from_inner(bpe._inner, clean_up_tokenization_spaces=True)
    assert ours.decode(ours.encode("f ( x ) , the dog .")) == "f ( x ) , the dog ."


def test_token_text_is_the_text_amid_a_sentence(bpe, sp):
    for ours in (bpe, sp):
        ids = ours.encode("the quick dog", add_special_tokens=False)
        assert "".join(map(ours.token_text, ids)).lstrip() == "the quick dog"
        assert ours.token_text(ours.eos_token_id) == "</s>"
    assert sp.token_text(sp._inner.token_to_id("▁dog")) == " dog"
    assert bpe.token_text(bpe._inner.token_to_id("æ")) == "\ufffd"


def test_bad_words_have_every_tokenisation(bpe, sp):
    want = [bpe.encode("dog", False), bpe.encode(" dog", False)]
    assert bpe.tokenisations_of("dog") == bpe.tokenisations_of(" dog") == want and want[0] != want[1]
    assert bpe.tokenisations_of("\n") == [bpe.encode("\n", False), bpe.encode(" \n", False)]
    assert bpe.tokenisations_of("  ") == []
    assert all(1 not in ids for ids in sp.tokenisations_of("dog"))


def test_half_a_surrogate_pair_is_refused(bpe):
    with pytest.raises(RequestError, match="surrogate"):
        bpe.encode("x\ud83d")


def test_a_broken_file_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="tokenizers library"):
        Tokenizer.from_data(TokenizerData(tokenizer_json='{"model": 1}'))


def test_a_template_processor_without_bos_is_completed(bpe):
    inner = bpe._inner.from_str(bpe._inner.to_str())
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    ours = from_inner(inner, bos_token="<s>", eos_token="</s>", add_bos_token=True, add_eos_token=True)
    assert [ours.encode("dog")[0], *ours.encode("dog")[-2:]] == [0, ours.encode("dog", False)[-1], 1]
