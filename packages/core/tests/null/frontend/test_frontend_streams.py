"""Outputs reach the coroutines that read them: all of them, in order, once; and who stops reading ends the request."""

import asyncio
import threading
import time
from collections import deque

import pytest

from modulm.errors import EngineError, RequestError
from modulm.frontend import streams as module
from modulm.frontend.streams import Streams
from modulm.outputs import Health
from modulm.sampling_params import RequestOutputKind, SamplingParams
from modulm.types import StepOutput

PARAMS = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


class Engine:
    """A `WatchedClient` whose every step gives each request its next token: the prompt's length, one more each time.

    Attributes:
        paused: While set, no step is made.
        stop_at: As if paused after so many steps.
        failure: Raised by the next poll.
    """

    report = None

    def __init__(self):
        self.running = {}
        self.inbox = deque()
        self.submitted, self.aborted, self.num_steps = 0, [], 0
        self.stop_at = None
        self.failure = None
        self.paused = threading.Event()
        self.is_shut_down = False

    def submit(self, request):
        self.submitted += 1
        self.inbox.append(request)

    def abort(self, request_ids, reason="abort"):
        self.aborted += request_ids
        self.inbox.append(list(request_ids))

    def has_work(self):
        return bool(self.inbox or self.running)

    def poll(self):
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if self.is_shut_down or not self.has_work() or self.paused.is_set() or self.num_steps == self.stop_at:
            outputs = [] if not self.is_shut_down else self._end_all()
            time.sleep(0.001)
            return outputs
        while self.inbox:
            message = self.inbox.popleft()
            for request_id in message if isinstance(message, list) else ():
                self.running.pop(request_id, None)
            if not isinstance(message, list):
                self.running[message.request_id] = [message, 0]
        self.num_steps += 1
        return [self._next(request_id) for request_id in list(self.running)]

    def _next(self, request_id):
        request, count = self.running[request_id]
        self.running[request_id][1] += 1
        last = count + 1 == request.max_tokens
        if last:
            del self.running[request_id]
        token = len(request.prompt_token_ids) + count
        return StepOutput(request_id=request_id, token_ids=[token], finish_reason="length" if last else None)

    def _end_all(self):
        ids = [*self.running, *(m.request_id for m in self.inbox if not isinstance(m, list))]
        self.running, self.inbox = {}, deque()
        return [StepOutput(request_id=request_id, finish_reason="abort") for request_id in ids]

    def stats(self):
        return "stats", threading.current_thread().name

    def health(self):
        return Health(alive=True, ready=True)

    def shutdown(self):
        self.is_shut_down = True


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def streams(make_frontend, engine):
    made = Streams(make_frontend(), engine)
    yield made
    made.shutdown()


async def read(streams, prompt, params=PARAMS, most=None):
    """Everything that one stream gives, or its first tokens; steps that were not waited for come together."""
    stream = await streams.open(prompt, params)
    outputs = []
    try:
        while not (outputs and outputs[-1].finished) and len(tokens(outputs)) != most:
            outputs.append(await stream.outputs.get())
        assert most or stream.outputs.empty()
    finally:
        streams.close(stream)
    return outputs


def tokens(outputs):
    return [token for output in outputs for token in output.outputs[0].token_ids]


def test_each_reads_its_own_in_order(streams):
    async def all_of_them():
        return await asyncio.gather(*[read(streams, [9] * (n + 1)) for n in range(10)])

    for number, outputs in enumerate(asyncio.run(all_of_them())):
        assert tokens(outputs) == list(range(number + 1, number + 51))
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_a_normal_end_sends_no_abort(streams, engine):
    async def many():
        for _ in range(10):
            await asyncio.gather(*[read(streams, [9], PARAMS.clone(max_tokens=1 + n % 5)) for n in range(100)])

    asyncio.run(many())
    assert (engine.submitted, engine.aborted) == (1000, [])
    assert streams.num_open == 0


def test_an_event_loop_is_woken_once_a_step(make_frontend, engine, monkeypatch):
    calls = []
    monkeypatch.setattr(module, "_put", lambda batch, put=module._put: calls.append(len(batch)) or put(batch))
    streams = Streams(make_frontend(), engine)
    engine.paused.set()

    async def together():
        reads = [asyncio.create_task(read(streams, [9])) for _ in range(16)]
        await asyncio.sleep(0.05)
        engine.paused.clear()
        await asyncio.gather(*reads)

    asyncio.run(together())
    streams.shutdown()
    assert calls == [16] * 50
    assert engine.num_steps == 50


def test_who_stops_reading_ends_the_request(streams, engine):
    engine.stop_at = 3

    async def stop():
        await read(streams, [9], most=3)

    asyncio.run(stop())
    assert (engine.aborted, streams.num_open) == (["0-0"], 0)


def test_a_cancelled_reader_ends_the_request(streams, engine):
    engine.paused.set()

    async def cancel():
        task = asyncio.create_task(read(streams, [9]))
        await asyncio.sleep(0.02)
        assert streams.num_open == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert len(engine.aborted) == engine.submitted == 1


def test_text_is_tokenised_elsewhere(make_frontend, engine, monkeypatch):
    """A long text held up everything that the event loop had to do."""
    frontend = make_frontend()
    encode, threads = frontend.tokenizer.encode, []

    def slow(text, *args, **kwargs):
        threads.append(threading.current_thread().name)
        time.sleep(0.3)
        return encode(text, *args, **kwargs)

    monkeypatch.setattr(frontend.tokenizer, "encode", slow)
    streams = Streams(frontend, engine)

    async def beside():
        task, longest = asyncio.create_task(read(streams, "the fox")), 0.0
        while not task.done():
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)
        return tokens(await task), longest

    found, longest = asyncio.run(beside())
    count = len(encode("the fox"))
    assert found == list(range(count, count + 50))
    assert longest < 0.2 and threads[0].startswith("modulm-tokenize")
    streams.shutdown()


def test_many_ids_are_checked_elsewhere(make_frontend, engine, monkeypatch):
    """Two million of them held up the event loop for a third of a second."""
    frontend = make_frontend()
    submit, threads = frontend.submit, []
    monkeypatch.setattr(
        frontend, "submit", lambda *a, **k: threads.append(threading.current_thread()) or submit(*a, **k)
    )
    monkeypatch.setattr(module, "_MOST_IDS", 4)
    streams = Streams(frontend, engine)
    for prompt in ([9] * 4, {"prompt_token_ids": [9] * 4}, [9] * 5, {"prompt": "x", "prompt_token_ids": [9] * 5}):
        count = len(prompt) if isinstance(prompt, list) else len(prompt["prompt_token_ids"])
        assert tokens(asyncio.run(read(streams, prompt))) == list(range(count, count + 50))
    assert [thread is threading.main_thread() for thread in threads] == [True, True, False, False]
    streams.shutdown()


def test_a_reader_cancelled_while_its_text_is_tokenised_leaves_nothing(make_frontend, engine, monkeypatch):
    frontend = make_frontend()
    encode = frontend.tokenizer.encode
    monkeypatch.setattr(frontend.tokenizer, "encode", lambda *args: time.sleep(0.1) or encode(*args))
    streams = Streams(frontend, engine)
    engine.paused.set()

    async def cancel():
        task = asyncio.create_task(read(streams, "the fox"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.3)

    asyncio.run(cancel())
    assert streams.num_open == 0
    assert len(engine.aborted) == engine.submitted == 1
    streams.shutdown()


def test_a_refused_request_leaves_nothing(streams, engine):
    async def refused():
        for prompt in ([], [10**6], "", {"promt": "x"}, [1] * 64):
            with pytest.raises(RequestError):
                await read(streams, prompt)

    asyncio.run(refused())
    assert (engine.submitted, engine.aborted, streams.num_open) == (0, [], 0)


def test_a_lost_engine_ends_all_and_the_next_request_is_served(streams, engine):
    async def lose():
        engine.paused.set()
        reads = [asyncio.create_task(read(streams, [9])) for _ in range(5)]
        await asyncio.sleep(0.05)
        engine.failure = EngineError("it rained in")
        engine.running, engine.inbox = {}, deque()
        last = [outputs[-1] for outputs in await asyncio.gather(*reads)]
        engine.paused.clear()
        return last, await read(streams, [9])

    last, again = asyncio.run(lose())
    assert {(o.finished, o.error, o.outputs[0].finish_reason) for o in last} == {(True, "it rained in", "error")}
    assert tokens(again) == list(range(1, 51))
    assert engine.aborted == []


def test_a_bug_in_the_front_end_ends_all_and_hangs_nobody(streams, engine, caplog):
    engine.stop_at = 3

    async def fail():
        reads = [asyncio.create_task(read(streams, [9])) for _ in range(5)]
        await asyncio.sleep(0.01)
        engine.failure = ZeroDivisionError("a bug")
        last = [outputs[-1] for outputs in await asyncio.gather(*reads)]
        engine.stop_at = None
        return last, await read(streams, [9])

    last, again = asyncio.run(fail())
    assert all(o.finished and o.error == "The front end failed; the log says why." for o in last)
    assert "a bug" in caplog.text
    assert tokens(again) == list(range(1, 51))
    assert streams.num_open == 0


def test_a_report_that_nobody_can_take_ends_nothing(make_frontend, engine, caplog):
    """The polling thread ended, and everybody waited for ever."""
    engine.report = "report"
    streams = Streams(make_frontend(), engine, on_report=lambda report: 1 / 0)
    assert tokens(asyncio.run(asyncio.wait_for(read(streams, [9]), 5))) == list(range(1, 51))
    assert "A report was lost" in caplog.text
    streams.shutdown()


def test_several_event_loops_share_an_engine(streams):
    found = {}

    def run(number):
        found[number] = tokens(asyncio.run(read(streams, [9] * number)))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == {number: list(range(number, number + 50)) for number in range(1, 6)}


def test_a_loop_that_was_closed_ends_its_requests(streams, engine):
    loop = asyncio.new_event_loop()
    engine.paused.set()
    loop.run_until_complete(streams.open([9], PARAMS))
    loop.close()
    engine.paused.clear()
    deadline = time.monotonic() + 5
    while streams.num_open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert streams.num_open == 0 and len(engine.aborted) == 1


def test_stats_are_asked_for_by_the_polling_thread(streams):
    assert streams.stats() == ("stats", "modulm-poll")


def test_shutdown_ends_requests_and_threads(make_frontend, engine):
    before = threading.active_count()
    streams = Streams(make_frontend(), engine)

    async def end():
        engine.paused.set()
        reads = [asyncio.create_task(read(streams, prompt)) for prompt in ([9], [9, 9], "the fox")]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(streams.shutdown)
        await asyncio.to_thread(streams.shutdown)
        last = [outputs[-1] for outputs in await asyncio.gather(*reads)]
        for prompt in ([9], "the fox"):
            with pytest.raises(EngineError, match="shut down"):
                await streams.open(prompt, PARAMS)
        return last

    last = asyncio.run(end())
    assert [output.outputs[0].finish_reason for output in last] == ["abort"] * 3
    with pytest.raises(EngineError, match="shut down"):
        streams.stats()
    assert threading.active_count() == before
