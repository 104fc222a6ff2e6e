"""Both ends of the socket, here with an engine in a thread: what comes out is what the engine alone gives."""

import collections
import threading
import time

import psutil
import pytest

from modulm.errors import ConfigError, EngineError, RequestError
from modulm.transport import socket
from modulm.transport.codec import Outputs
from modulm.transport.socket import SocketClient, SocketServer


class Pair:
    """A client, and a server that serves in a thread."""

    def __init__(self, sim, folder, *, reports=False, **options):
        self.engine, self.executor = sim.make_engine(**options)
        self.client = SocketClient(folder)
        self.server = SocketServer(folder, reports=reports)
        self.server.say(Outputs())
        assert self.client.receive(5.0) == Outputs()  # so that both are connected
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self):
        self.server.serve(self.engine)
        self.server.close()

    def messages(self, done, most_s=20):
        """Let the server run, and return its messages until `done(messages)`."""
        if self.thread.ident is None:
            self.thread.start()
        found, deadline = [], time.monotonic() + most_s
        while not done(found):
            message = self.client.receive(5.0)
            assert message is not None and time.monotonic() < deadline
            found.append(message)
        return found

    def end(self):
        self.client.end()
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def make_pair(sim, tmp_path_factory):
    made = []

    def make(**options):
        made.append(Pair(sim, tmp_path_factory.mktemp("s"), **options))
        return made[-1]

    yield make
    for pair in made:
        if pair.thread.is_alive():
            pair.end()
        elif pair.thread.ident is None:
            pair.server.close()
        pair.client.close()


def ended(messages):
    return [o.request_id for m in messages for o in m.outputs if o.finish_reason is not None]


def of(messages, request_id):
    return [output for message in messages for output in message.outputs if output.request_id == request_id]


def test_answers_are_the_engines_own(make_pair, sim):
    pair = make_pair(max_num_seqs=4)
    requests = [sim.make_request(f"r{n}", range(n + 1), 3 + n % 4) for n in range(12)]
    for request in requests:
        pair.client.submit(request)
    messages = pair.messages(lambda found: len(ended(found)) == 12)
    for request in requests:
        outputs = of(messages, request.request_id)
        assert sim.joined(outputs) == sim.expected_output(request, pair.executor.layout)


def test_one_message_a_step(make_pair, sim):
    pair = make_pair(layout=sim.make_layout(num_blocks=50_000))
    names = [f"r{number}" for number in range(8)]
    for number, name in enumerate(names):  # they arrive one by one, so each goes on until all have come
        pair.client.submit(sim.make_request(name, [number], 10_000))
    messages = pair.messages(lambda found: found and len(found[-1].outputs) == 8)
    pair.client.abort(names)
    messages += pair.messages(lambda found: len(ended(found)) == 8)
    stepped = [message for message in messages if any(output.token_ids for output in message.outputs)]
    assert len(stepped) == sum(1 for plan in pair.executor.plans if plan.scheduled)


def test_an_abort_comes_between_two_steps(make_pair, sim):
    pair = make_pair(layout=sim.make_layout(num_blocks=5000))
    pair.client.submit(sim.make_request("long", [1], 10_000))
    pair.messages(lambda found: len(of(found, "long")) >= 3)
    pair.client.abort(["long", "unknown"])
    messages = pair.messages(ended)
    assert of(messages, "long")[-1].finish_reason == "abort"
    pair.client.ask()
    (*_, last) = pair.messages(lambda found: found and found[-1].report)
    assert last.report.scheduler.num_running_reqs == 0 and last.report.scheduler.kv_cache_usage == 0


def test_reports_come_with_every_step_or_when_asked_for(make_pair, sim):
    for reports in (True, False):
        pair = make_pair(reports=reports)
        pair.client.submit(sim.make_request("r", [1], 6))
        messages = [m for m in pair.messages(ended) if m.outputs]
        told = [message.report.iteration.num_generation_tokens for message in messages if message.report is not None]
        assert told == ([1] * 6 if reports else [])
        pair.client.ask()
        (*_, last) = pair.messages(lambda found: found and found[-1].report)
        assert last.report.iteration.num_generation_tokens == (0 if reports else 6)


@pytest.mark.parametrize("value", [2**70, -(2**70), object()], ids=["large", "small", "object"])
def test_what_no_message_can_hold_is_the_requests_fault(make_pair, sim, value):
    pair = make_pair()
    with pytest.raises(RequestError, match="extra_args cannot be sent") as caught:
        pair.client.submit(sim.make_request("bad", [1], 3, extra_args={"x": [value]}))
    assert caught.value.parameter == "extra_args"
    pair.client.submit(sim.make_request("good", [1], 3))
    assert ended(pair.messages(ended)) == ["good"]


def test_an_idle_engine_says_that_it_lives(make_pair, monkeypatch):
    monkeypatch.setattr(socket, "HEARTBEAT_S", 0.05)
    pair = make_pair()
    started, before = time.monotonic(), time.process_time()
    assert pair.messages(lambda found: len(found) == 5) == [Outputs()] * 5
    assert time.monotonic() - started >= 0.2
    assert time.process_time() - before < 0.15  # it sleeps in between


def test_steps_without_outputs_are_signs_of_life_too(make_pair, sim, monkeypatch):
    """A long prompt takes many steps before its first token."""
    monkeypatch.setattr(socket, "HEARTBEAT_S", 0.0)
    pair = make_pair(layout=sim.make_layout(num_blocks=200), max_num_batched_tokens=8)
    pair.client.submit(sim.make_request("r", [1] * 80, 1))
    messages = pair.messages(ended)
    assert [bool(message.outputs) for message in messages[-10:]] == [False] * 9 + [True]


def test_the_end_gives_everyone_a_last_output(make_pair, sim):
    pair = make_pair(layout=sim.make_layout(num_blocks=5000))
    for number in range(3):
        pair.client.submit(sim.make_request(f"r{number}", [1], 10_000))
    found = pair.messages(lambda found: found and found[-1].outputs)
    pair.end()
    found += pair.messages(lambda more: len(ended(more)) == 3)
    assert {of(found, f"r{number}")[-1].finish_reason for number in range(3)} == {"abort"}
    assert pair.executor.is_shut_down


def test_sending_to_a_lost_engine_is_an_error_and_does_not_block(make_pair, sim):
    pair = make_pair()
    pair.thread.start()
    pair.end()
    request = sim.make_request("r", [1], 2)
    with pytest.raises(EngineError, match="process is gone"):  # the system may need a moment to notice
        collections.deque(map(pair.client.submit, [request] * 10_000))
    pair.client.abort(["r"])
    pair.client.close()
    pair.client.close()
    with pytest.raises(EngineError, match="process is gone"):
        pair.client.submit(sim.make_request("r", [1], 2))
    pair.client.abort(["r"])


def test_everything_is_given_back(make_pair, sim):
    def counts():
        process = psutil.Process()
        return process.num_fds(), process.num_threads()

    def use():
        pair = make_pair()
        pair.client.submit(sim.make_request("r", [1], 2))
        pair.messages(ended)
        pair.end()
        pair.client.close()

    use()
    time.sleep(0.1)
    before = counts()
    for _ in range(10):
        use()
    deadline = time.monotonic() + 2  # threads end a moment after they are joined
    while counts() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts() == before


def test_a_folder_whose_path_is_too_long_is_named(tmp_path):
    folder = tmp_path / ("a" * 100)
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"aaa.*cannot hold the sockets.*TMPDIR"):
        SocketClient(folder)
