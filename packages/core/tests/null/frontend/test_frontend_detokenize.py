"""Pieces of text add up to what the tokenizers library makes of all ids at once: any ids, any kind of tokenizer."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.frontend.detokenize import detokenizer, token_bytes


def run(tokenizer, ids, **options):
    text = detokenizer(tokenizer, **options)
    return [*(text.step(i) for i in ids), text.finish()]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), skip=st.booleans())
def check_any_ids(ours, library, data, skip):
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size), max_size=24))
    assert "".join(run(ours, ids, skip_special_tokens=skip)) == library.decode(ids, skip_special_tokens=skip)


def test_any_ids(both):
    check_any_ids(*both)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def check_bytes(ours, library, low, data):
    """Ids of bytes mostly: characters complete, broken and cut."""
    any_byte = st.integers(low, low + 255)
    characters = st.sampled_from("我ü😊é\n").map(lambda c: [low + b for b in c.encode()])
    ids = sum(data.draw(st.lists(any_byte.map(lambda i: [i]) | characters, max_size=10)), [])
    ids += [data.draw(st.integers(0, ours.vocab_size - 1)) for _ in range(data.draw(st.integers(0, 2)))]
    assert "".join(run(ours, ids)) == library.decode(ids)


def test_bytes_of_a_sentencepiece_tokenizer(sp):
    check_bytes(sp, sp._inner, 3)


def test_bytes_of_a_byte_level_tokenizer(bpe):
    check_bytes(bpe, bpe._inner, 4)


def test_bytes_of_tokens_add_up_to_the_text(bpe, sp):
    """Also where a character is spread over tokens."""
    for ours in (bpe, sp):
        ids = ours.encode("the quick 我 能 brown 😊 dog\n x über", add_special_tokens=False)
        pieces = [token_bytes(ours, token_id) for token_id in ids]
        assert b"".join(pieces).decode().lstrip(" ") == ours._inner.decode(ids)
        assert any(piece.decode(errors="ignore") == "" for piece in pieces)


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, 40))
def check_continuation(ours, text, cut):
    ids = ours.encode(text)
    prompt, rest = ids[:cut], ids[cut:]
    pieces = "".join(run(ours, rest, prompt_token_ids=prompt))
    assert (ours.decode(prompt).rstrip("\ufffd") + pieces).rstrip("\ufffd") == ours.decode(ids)


def test_with_a_prompt_the_text_continues_it(bpe, sp):
    """Also where the prompt ends amid a character; the first word keeps its space."""
    for ours in (bpe, sp):
        check_continuation(ours, "the quick 我 能 brown 😊 dog\n x über")
    prompt, word = sp.encode("the"), [sp._inner.token_to_id("▁dog")]
    assert "".join(run(sp, word, prompt_token_ids=prompt)) == " dog"
    for text, rest in (("the 我", "能"), ("the\n", "\n")):
        ids = sp.encode(text + rest)
        assert "".join(run(sp, ids[len(sp.encode(text)) :], prompt_token_ids=sp.encode(text))) == rest
    assert "".join(run(sp, word, prompt_token_ids=[1])) == "".join(run(sp, word)) == "dog"


def test_an_incomplete_character_at_the_end_is_flushed_once(bpe):
    pieces = run(bpe, [*bpe.encode("x", False), *incomplete(bpe)])
    assert "".join(pieces) == "x\ufffd" and pieces[-1] == "\ufffd"


def incomplete(bpe):
    """The first two of the three bytes of a character."""
    return [bpe._inner.token_to_id("æ"), bpe._inner.token_to_id("Ī")]


def test_only_the_prompt_unfinished_is_no_text(bpe, sp):
    assert run(bpe, [], prompt_token_ids=incomplete(bpe)) == [""]
    assert run(sp, [], prompt_token_ids=[1, 3 + 0xE6]) == [""]
    assert run(sp, [2], prompt_token_ids=[1, 3 + 0xE6]) == ["", ""]


def test_text_comes_as_soon_as_it_is_certain(bpe):
    ids = bpe.encode("the 我 dog", False)
    pieces = run(bpe, ids)
    assert pieces[-1] == "" and pieces[0] and all("\ufffd" not in piece for piece in pieces)


def test_special_tokens_side_by_side(both):
    """`spaces_between_special_tokens=False` matters where the decoder joins tokens by spaces."""
    ours, library = both
    ids = [library.token_to_id("<tool>"), library.token_to_id("a b"), library.token_to_id("<tool>")]
    options = {"skip_special_tokens": False}
    assert "".join(run(ours, ids, **options)) == library.decode(ids, skip_special_tokens=False)
    joined = "".join(run(ours, ids, spaces_between_special_tokens=False, **options))
    assert joined.replace(" ", "") == "<tool>ab<tool>" and " <tool>" not in joined


@pytest.mark.parametrize("kind", ["bpe", "sp"])
def test_time_is_linear(kind, request):
    """Ten times the tokens may take no more than about ten times the time."""
    ours = request.getfixturevalue(kind)
    ids = (ours.encode("the quick brown fox über den dog", False) * 1000)[:10000]

    def seconds(count):
        started = time.perf_counter()
        run(ours, ids[:count])
        return time.perf_counter() - started

    seconds(100)
    assert seconds(10000) < 40 * max(seconds(1000), 1e-3)
