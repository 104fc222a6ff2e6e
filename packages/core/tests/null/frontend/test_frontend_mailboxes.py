"""Outputs go to whoever waits for them, and a wait that cannot end is an error."""

import gc

import pytest

from modulm.errors import EngineError
from modulm.frontend.mailboxes import Mailboxes
from modulm.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0.0)


def test_each_gets_its_own(make_frontend, engine):
    boxes = Mailboxes(make_frontend())
    first, second = boxes.open([9], PARAMS), boxes.open([10], PARAMS)
    engine.say(engine.submitted[1], [11], "length")
    engine.say(engine.submitted[0], [12], "length")
    assert [output.request_id for output in boxes.wait([second])] == [second]
    assert [output.outputs[0].token_ids for output in boxes.wait([first])] == [[12]]


def test_a_wait_without_end_is_an_error(make_frontend, engine):
    boxes = Mailboxes(make_frontend())
    label = boxes.open([9], PARAMS)
    engine.say(engine.submitted[0], [12], "length")
    assert boxes.wait([label])
    with pytest.raises(EngineError, match="nothing left to do"):
        boxes.wait([label])


def test_what_the_engine_raises_reaches_the_waiting_and_the_next_may_go_on(make_frontend, engine):
    boxes = Mailboxes(make_frontend())
    label = boxes.open([9], PARAMS)
    engine.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        boxes.wait([label])
    engine.failure = None
    engine.say(engine.submitted[0], [12], "length")
    assert boxes.wait([label])


def test_closing_aborts_what_goes_on(make_frontend, engine):
    boxes = Mailboxes(make_frontend())
    label = boxes.open([9], PARAMS)
    boxes.close(label)
    boxes.close(label)
    assert engine.aborted == [engine.submitted[0].request_id]


def test_a_garbage_collection_inside_the_front_end_may_close(make_frontend, engine):
    """Its lock was not reentrant: a stream that the collector closed while the same thread held it hung for ever."""
    frontend = make_frontend()
    boxes = Mailboxes(frontend)

    class Stream:
        def __init__(self):
            self.me, self.label = self, boxes.open([9], PARAMS)

        def __del__(self):
            boxes.close(self.label)

    Stream()
    with frontend._lock:
        gc.collect()
    assert engine.aborted == [engine.submitted[0].request_id]
