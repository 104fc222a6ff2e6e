"""The wall: what the frontend sees of an engine in its own process, and messages as bytes."""

import pytest

from modulm.errors import EngineError
from modulm.sampling_params import RequestOutputKind, SamplingParams
from modulm.transport.codec import Abort, Submit, decode, decode_to_engine, encode
from modulm.transport.inprocess import InProcessClient
from modulm.types import (
    Adapter,
    EngineStats,
    NewSequence,
    Plan,
    Request,
    SampledTokens,
    Scheduled,
    StepOutput,
    StepResult,
    TokenLogprobs,
)


def test_polling_runs_the_engine(sim):
    engine, executor = sim.make_engine()
    client = InProcessClient(engine)
    assert not client.has_work()
    assert client.poll() == []
    request = sim.make_request("r", [1, 2], 3)
    client.submit(request)
    outputs = []
    while client.has_work():
        outputs += client.poll()
    assert sim.joined(outputs) == sim.expected_output(request, executor.layout)
    client.submit(sim.make_request("s", [1, 2], 3))
    client.abort(["s"])
    assert [o.finish_reason for o in client.poll()] == ["abort"]
    assert client.stats().iteration.num_generation_tokens == 3
    client.shutdown()
    assert executor.is_shut_down


def _full_request():
    params = SamplingParams(
        n=2,
        temperature=0.7,
        stop=["a", "b"],
        stop_token_ids=[3],
        logit_bias={5: -1.5},
        bad_words=["x"],
        min_tokens=2,
        output_kind=RequestOutputKind.DELTA,
        extra_args={"deep": {"list": [1, None, "x"]}},
    )
    return Request(
        request_id="r",
        prompt_token_ids=[1, 2, 2**31],
        params=params,
        max_tokens=16,
        stop_token_ids=[3],
        eos_token_ids=[3],
        bad_words_token_ids=[[7], [8, 9]],
        seed=2**63,
        adapter=Adapter(name="n", key="k", path="p"),
        cache_salt="s",
        trace_headers={"traceparent": "00-1-2-01"},
    )


def _logprobs():
    return [TokenLogprobs(token_id=1, logprob=float("-inf"), rank=1, top_ids=[1, 2], top_logprobs=[-0.5, -1.25])]


_MESSAGES = [
    _full_request(),
    Plan(
        new=[NewSequence(request=_full_request(), token_ids=[1, 2])],
        forget=["a"],
        scheduled=[Scheduled(request_id="r", start=0, num_tokens=2, new_block_ids=[[1], [0, 2]], samples=True)],
    ),
    StepResult(sampled=[SampledTokens(request_id="r", token_ids=[1], logprobs=_logprobs(), error="é")]),
    StepOutput(request_id="r", token_ids=[1], finish_reason="stop", stop_token_id=1, prompt_logprobs=_logprobs()),
]


@pytest.mark.parametrize("message", _MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_way_there_and_back(message):
    assert decode(encode(message), type(message)) == message


def test_reports_survive_too(sim):
    engine, _ = sim.make_engine()
    engine.submit(sim.make_request("r", [1, 2], 3))
    sim.run(engine)
    stats = engine.stats()
    assert stats.iteration.finished_requests
    assert decode(encode(stats), EngineStats) == stats


def test_submit_and_abort_share_one_stream():
    for message in (Submit(request=_full_request()), Abort(request_ids=["r", "s"], reason="stop")):
        assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize("data", [b"", b"\xc1", encode(Abort(request_ids=["r"]))[:-1], encode(["x"])])
def test_what_is_no_message_is_an_engine_error(data):
    with pytest.raises(EngineError, match="same version"):
        decode_to_engine(data)
