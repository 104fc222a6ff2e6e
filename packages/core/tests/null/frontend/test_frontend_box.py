"""However slowly outputs are taken from a box, put together they are what the fastest reader gets."""

import asyncio
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modulm.frontend.box import Box
from modulm.outputs import CompletionOutput, Logprob, RequestOutput


def outputs_of(words, num_choices):
    """One output per word, telling the choices in turn; the last of each choice ends it."""
    made, left = [], {index: words[index::num_choices] for index in range(num_choices)}
    for number, word in enumerate(words):
        index = number % num_choices
        left[index] = left[index][1:]
        ends = not left[index]
        completion = CompletionOutput(
            index=index, text=word, token_ids=[number], logprobs=[{number: Logprob(logprob=-1.0)}],
            finish_reason="stop" if ends else None, stop_reason=word if ends else None,
        )  # fmt: skip
        made.append(
            RequestOutput(
                request_id="r", prompt="p", prompt_token_ids=[1], outputs=[completion],
                finished=not any(left.values()), prompt_logprobs=[None] if number == 0 else None,
            )
        )  # fmt: skip
    return made


def told(outputs, num_choices):
    texts, ids, ends = [""] * num_choices, [[] for _ in range(num_choices)], [None] * num_choices
    for output in outputs:
        for completion in output.outputs:
            assert ends[completion.index] is None
            assert len(completion.logprobs) == len(completion.token_ids)
            texts[completion.index] += completion.text
            ids[completion.index] += completion.token_ids
            ends[completion.index] = completion.stop_reason
    return texts, ids, ends, [output.prompt_logprobs for output in outputs if output.prompt_logprobs]


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.text(max_size=3), min_size=3, max_size=12), st.integers(1, 3), st.data())
def test_any_grouping_tells_the_same(words, num_choices, data):
    made = outputs_of(words, num_choices)
    expected = told(copy.deepcopy(made), num_choices)

    async def read():
        box, got, put = Box(joins=True), [], 0
        while put < len(made):
            count = data.draw(st.integers(1, len(made) - put))
            for output in made[put : put + count]:
                box.put(output)
            put += count
            got.append(await box.get())
        return got

    got = asyncio.run(read())
    assert told(got, num_choices) == expected
    assert [output.finished for output in got] == [False] * (len(got) - 1) + [True]


def test_without_joining_the_latest_counts():
    first, second = outputs_of(["a", "b", "c"], 1)[:2]

    async def read():
        box = Box(joins=False)
        box.put(first)
        box.put(second)
        return await box.get()

    assert [completion.text for completion in asyncio.run(read()).outputs] == ["b"]


def test_a_failure_is_not_lost_behind_news():
    news, _ = outputs_of(["a", "b"], 1)
    failed = RequestOutput(
        request_id="r", prompt=None, prompt_token_ids=[], finished=True, error="it rained in",
        outputs=[CompletionOutput(index=0, text="", token_ids=[], finish_reason="error")],
    )  # fmt: skip
    news.add(failed, aggregate=True)
    assert (news.error, news.finished, news.outputs[0].text) == ("it rained in", True, "a")
    assert news.outputs[0].finish_reason == "error"
    assert news.prompt_token_ids == [1]


@pytest.mark.parametrize("late", [False, True])
def test_a_reader_waits_and_may_be_cancelled(late):
    async def read():
        box = Box(joins=True)
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        if late:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            reader = asyncio.create_task(box.get())
            await asyncio.sleep(0)
        box.put(outputs_of(["a"], 1)[0])
        return await asyncio.wait_for(reader, 5)

    assert asyncio.run(read()).outputs[0].text == "a"
