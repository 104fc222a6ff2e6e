"""An engine that is lost is started again, later each time, and not for ever; nobody waits meanwhile."""

import collections
import math
import sys

import pytest

from modulm.errors import CheckpointError, EngineError
from modulm.transport import restarts
from modulm.transport.restarts import RestartingClient
from modulm.types import StepOutput

OUTPUT = StepOutput(request_id="r", token_ids=[1])


class Engine:
    """A `StartedEngine` that does as it is told."""

    def __init__(self, clock, *, is_ready=True):
        self.is_ready, self.load_s, self.heard_at, self.report = is_ready, 3.0 if is_ready else 0.0, clock.now, None
        self.loss = None
        self.told_to_end = False
        self.submitted, self.aborted, self.outputs = [], [], []

    def submit(self, request):
        self.submitted.append(request)

    def abort(self, request_ids, reason="abort"):
        self.aborted += request_ids

    def poll(self):
        if self.loss is not None:
            raise self.loss
        outputs, self.outputs = self.outputs, []
        if self.told_to_end:
            self.loss = EngineError("It has ended.")
        return outputs

    def stats(self):
        return "stats"

    def shutdown(self):
        self.told_to_end = True


class World:
    """Engines, and a time that passes when somebody sleeps."""

    def __init__(self, monkeypatch, most):
        self.now = 0.0
        self.engines = [Engine(self)]
        self.no_more = False
        monkeypatch.setattr(restarts.time, "sleep", self.sleep)
        self.client = RestartingClient(self.engines[0], self.start, restarts=most, clock=lambda: self.now)

    def sleep(self, seconds):
        assert 0 < seconds <= restarts.TICK_S
        self.now += seconds

    def start(self):
        if self.no_more:
            raise OSError("no more processes")
        self.engines.append(Engine(self, is_ready=False))
        return self.engines[-1]

    def lose(self, error=None):
        """Lose the engine in place; the poll that notices it says so."""
        self.engines[-1].loss = error or EngineError("It was killed.")
        with pytest.raises(EngineError, match="The engine was lost"):
            self.client.poll()

    def seconds_to_start(self):
        """Poll until another engine is started; how long that takes."""
        before, since = len(self.engines), self.now
        while len(self.engines) == before:
            assert self.client.poll() == []
        return self.now - since

    def make_ready(self):
        self.engines[-1].is_ready, self.engines[-1].load_s, self.engines[-1].heard_at = True, 3.0, self.now
        assert self.client.poll() == []


@pytest.fixture
def make_world(monkeypatch):
    return lambda most=3: World(monkeypatch, most)


def test_verbs_go_to_the_engine(make_world):
    world = make_world()
    (engine,) = world.engines
    world.client.submit("request")
    world.client.abort(["a"])
    engine.outputs = [OUTPUT]
    assert world.client.poll() == [OUTPUT]
    assert (engine.submitted, engine.aborted, world.client.stats()) == (["request"], ["a"], "stats")
    assert world.client.health().ready


def test_a_lost_engine_is_started_again(make_world):
    world = make_world()
    world.lose()
    health = world.client.health()
    assert (health.alive, health.ready, health.restarts) == (True, False, 0) and "It was killed" in health.reason
    assert world.seconds_to_start() == pytest.approx(0.5, abs=restarts.TICK_S)
    assert not world.client.health().ready  # it loads
    world.make_ready()
    assert world.client.health().ready and world.client.health().restarts == 1
    world.client.submit("again")
    assert world.engines[1].submitted == ["again"]


def test_requests_meanwhile_are_told_when_to_come_again(make_world):
    world = make_world()
    world.lose()
    with pytest.raises(EngineError, match=r"killed.*started again: try again in 4 s") as caught:
        world.client.submit("request")
    assert caught.value.retry_after_s == math.ceil(0.5 + 3.0)  # the delay, and as long as it took to load before
    world.client.abort(["a"])  # nothing to end, nothing to say
    assert world.engines[0].aborted == []
    with pytest.raises(EngineError):
        world.client.stats()
    world.seconds_to_start()
    with pytest.raises(EngineError, match="try again"):
        world.client.submit("request")
    assert world.engines[1].submitted == []


def test_each_start_in_a_row_waits_twice_as_long(make_world):
    world = make_world(9)
    waited = []
    for _ in range(9):
        world.lose(CheckpointError("The file is gone."))  # as when loading fails
        waited.append(world.seconds_to_start())
    assert waited == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30], abs=restarts.TICK_S)


def test_it_is_given_up_after_so_many_in_a_row(make_world):
    world = make_world(2)
    for _ in range(2):
        world.lose()
        world.seconds_to_start()
        world.make_ready()
    world.lose()
    for _ in range(5):
        with pytest.raises(EngineError, match="not started again"):
            world.client.poll()
    assert len(world.engines) == 3
    with pytest.raises(EngineError, match="start this program anew") as caught:
        world.client.submit("request")
    assert caught.value.retry_after_s is None
    health = world.client.health()
    assert (health.alive, health.ready) == (False, False)


def test_at_every_moment_of_a_loss_others_are_told_one_thing(make_world):
    """Other threads may look at any time; here at every line that the loss runs through."""
    world = make_world()
    seen = []

    def look(frame, event, arg):
        sys.settrace(None)
        health = world.client.health()
        try:
            world.client.submit("request")
        except EngineError as error:
            seen.append((health.alive, health.ready, "try again in 4 s" in str(error)))
        sys.settrace(trace)
        return look

    def trace(frame, event, arg):
        return look(frame, event, arg) if frame.f_code.co_name == "_lost" else None

    sys.settrace(trace)
    try:
        world.lose()
    finally:
        sys.settrace(None)
    assert len(seen) > 3
    assert set(seen[1:]) == {(True, False, True)}
    assert seen[0] in {(True, False, True), (True, True, True)}  # the loss may come between the two questions


def test_what_was_raised_in_the_other_process_is_for_the_log_and_not_for_clients(make_world, caplog):
    world = make_world()
    error = CheckpointError("/home/me/secret.gguf is gone.")
    error.__cause__ = RuntimeError("the traceback")
    world.engines[0].loss = error
    with pytest.raises(EngineError, match=r"was lost: The engine process failed \(CheckpointError\)") as caught:
        world.client.poll()
    with pytest.raises(EngineError, match="try again") as refused:
        world.client.submit("request")
    told = [str(caught.value), str(refused.value), world.client.health().reason]
    assert not any("/home/me" in each for each in told)
    assert "/home/me/secret.gguf is gone" in caplog.text


def test_five_healthy_minutes_begin_the_count_anew(make_world):
    world = make_world(1)
    for healthy_s in (0, 300, 301, 1000):
        world.now += healthy_s
        world.lose()
        assert world.seconds_to_start() == pytest.approx(0.5, abs=restarts.TICK_S)
        world.make_ready()
    world.now += 299
    world.lose()
    with pytest.raises(EngineError, match="not started again"):
        world.client.poll()


def test_minutes_of_loading_are_not_healthy(make_world):
    world = make_world(1)
    world.lose()
    world.seconds_to_start()
    world.now += 1000
    world.lose()
    with pytest.raises(EngineError, match="not started again"):
        world.client.poll()


def test_a_start_that_the_system_refuses_counts(make_world):
    world = make_world(2)
    world.no_more = True
    world.lose()
    with pytest.raises(EngineError, match=r"no more processes.*not started again"):
        collections.deque(world.client.poll() for _ in range(200))


def test_a_silent_engine_is_not_ready(make_world):
    world = make_world()
    world.now += restarts.SILENCE_S - 1
    assert world.client.health().ready
    world.now += 2
    assert not world.client.health().ready and "no sign of life for 31 s" in world.client.health().reason
    world.engines[0].heard_at = world.now
    assert world.client.health().ready


def test_an_engine_that_was_asked_to_end_is_not_started_again(make_world):
    world = make_world()
    world.engines[0].outputs = [OUTPUT]
    world.client.shutdown()
    world.client.shutdown()
    assert world.client.poll() == [OUTPUT]
    assert not world.client.health().ready
    for _ in range(5):
        with pytest.raises(EngineError):
            world.client.poll()
    assert len(world.engines) == 1
    with pytest.raises(EngineError, match="has been shut down"):
        world.client.submit("request")
