"""Stat loggers: who is made and how, that nobody waits for them, that none is told too little, and what they write."""

import logging
import sys
import threading
import time

import pytest

from modulm.config import EngineConfig, ModelConfig
from modulm.errors import Broken
from modulm.frontend import stat_feed
from modulm.frontend.stat_lines import StatLines
from modulm.frontend.stat_loggers import PerEngineStatLoggerAdapter, StatLoggers, logged_config
from modulm.frontend.stat_sums import add, nothing
from modulm.interfaces.metrics import AggregateStatLoggerBase, StatLoggerBase
from modulm.plugins import discovery
from modulm.types import (
    EngineStats,
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    PromptTokenStats,
    SchedulerStats,
    SpecDecodingStats,
)

GROUP = "vllm.stat_logger_plugins"
PLUGINS = """
from modulm.interfaces.metrics import AggregateStatLoggerBase, StatLoggerBase
class Good(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0): self.index = engine_index
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...
class Fails(Good):
    def __init__(self, vllm_config, engine_index=0): raise KeyError("no such server")
class Raises(Good):
    def record(self, *args, **options): raise OSError("disk full")
class All(AggregateStatLoggerBase):
    def __init__(self, *, vllm_config, engine_indexes): self.indexes = engine_indexes
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
    def log_engine_initialized(self): ...
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Threads that take in what came at once."""
    monkeypatch.setattr(stat_feed, "_REST_S", 0.001)


@pytest.fixture
def config():
    model = ModelConfig(name="m", hf={}, architectures=[], max_model_len=512)
    return logged_config(EngineConfig(model="folder/m", served_model_name="m", block_size=8), model, 50)


@pytest.fixture
def loggers(config, site):
    """Make `StatLoggers`, which are closed at the end."""
    made = []

    def make(*factories, **options):
        options.setdefault("enable_default_loggers", False)
        made.append(StatLoggers(config, factories=factories, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Kept(AggregateStatLoggerBase):
    """Keeps what it is told, once `gate` is open."""

    def __init__(self, vllm_config, engine_indexes):
        self.config, self.told, self.rejections = vllm_config, [], []
        self.gate = threading.Event()
        self.gate.set()
        self.calls = []

    def log_engine_initialized(self):
        self.calls.append("initialized")

    def log(self):
        self.calls.append("log")

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.gate.wait()
        self.told.append((engine_idx, scheduler_stats, iteration_stats))

    def record_admission_rejection(self, reason):
        self.rejections.append(reason)


def report(num_prompt=0, num_cached=0, num_tokens=0, *, running=0, waiting=0, usage=0.0, lookups=(0, 0, 0), **fields):
    scheduler = {
        name: fields.pop(name) for name in ("num_skipped_waiting_reqs", "spec_decoding_stats") if name in fields
    }
    requests, queries, hits = lookups
    return EngineStats(
        scheduler=SchedulerStats(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            kv_cache_usage=usage,
            prefix_cache_stats=PrefixCacheStats(requests=requests, queries=queries, hits=hits),
            **scheduler,
        ),
        iteration=IterationStats(
            prompt_token_stats=PromptTokenStats(computed=num_prompt, local_cache_hit=num_cached),
            num_generation_tokens=num_tokens,
            **fields,
        ),
    )


def finished(number):
    return FinishedRequestStats(
        **{name: 0 for name in FinishedRequestStats.__struct_fields__ if name not in ("finish_reason", "request_id")}
        | {"finish_reason": "stop", "request_id": str(number), "trace_headers": None, "params": None}
    )


def eventually(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_callers_come_first_then_plugins_then_the_line_of_text(loggers, site, caplog):
    site.install("dist-a", {GROUP: {"good": "s_one:Good", "all": "s_one:All"}}, s_one=PLUGINS)
    caplog.set_level(logging.INFO, "modulm.stats")
    made = loggers(Kept, engine_indexes=(0, 3), enable_default_loggers=True).stat_loggers
    first, all_engines, good, text = made
    assert isinstance(first, Kept) and all_engines.indexes == [0, 3]
    assert isinstance(good, PerEngineStatLoggerAdapter)
    assert {index: own.index for index, own in good.per_engine_stat_loggers.items()} == {0: 0, 3: 3}
    assert isinstance(text.per_engine_stat_loggers[3], StatLines)


def test_the_line_of_text_is_left_out_where_nobody_would_see_it(loggers, caplog):
    caplog.set_level(logging.WARNING, "modulm.stats")
    assert loggers(Kept, enable_default_loggers=True).stat_loggers[1:] == []


def test_a_function_makes_loggers_too_and_gets_its_arguments_by_position(loggers):
    class Own(StatLoggerBase):
        def __init__(self, settings, number):
            self.asked = settings.model_config.max_model_len, number

        def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
        def log_engine_initialized(self): ...

    (made,) = loggers(lambda settings, number: Own(settings, number), engine_indexes=(1,)).stat_loggers
    assert made.per_engine_stat_loggers[1].asked == (512, 1)


def test_a_plugin_that_cannot_be_made_is_left_out_and_listed(loggers, site, caplog, monkeypatch):
    site.install("dist-a", {GROUP: {"fails": "s_two:Fails", "good": "s_two:Good"}}, s_two=PLUGINS)
    assert len(loggers().stat_loggers) == 1
    states = {record.name: (record.state, record.reason) for record in discovery.records(GROUP)}
    assert states["good"][0] == "loaded" and states["fails"][0] == "broken" and "no such server" in states["fails"][1]
    assert "Stat logger 'fails' (dist-a 1.0) is installed but broken: making it raised KeyError" in caplog.text
    monkeypatch.setenv("MODULM_STRICT_PLUGINS", "1")
    with pytest.raises(Broken, match="'fails' \\(dist-a 1.0\\)"):
        loggers()


def test_a_logger_that_the_caller_asked_for_must_work(loggers):
    def fails(config, index):
        raise KeyError("no such server")

    with pytest.raises(KeyError, match="no such server"):
        loggers(fails)


def test_one_that_raises_is_named_once_and_switched_off_while_others_go_on(loggers, site, caplog):
    site.install("dist-a", {GROUP: {"raises": "s_three:Raises"}}, s_three=PLUGINS)
    made = loggers(Kept)
    kept, _ = made.stat_loggers
    for number in range(1, 6):
        made.record(report(num_tokens=1))
        eventually(lambda number=number: len(kept.told) == number)
    eventually(lambda: "switched off" in caplog.text)
    assert caplog.text.count("Stat logger 'raises' (dist-a 1.0) raised OSError('disk full')") == 1
    (record,) = discovery.records(GROUP)
    eventually(lambda: record.state == "broken")
    assert "disk full" in record.reason


def test_loggers_are_told_once_that_the_engine_is_ready_and_asked_to_log_at_intervals(loggers):
    (kept,) = loggers(Kept, interval_s=0.01).stat_loggers
    eventually(lambda: kept.calls[:3] == ["initialized", "log", "log"])
    assert kept.calls.count("initialized") == 1


def test_every_report_is_told_as_it_came_while_the_logger_keeps_up(loggers):
    made = loggers(Kept, engine_indexes=(0, 1))
    (kept,) = made.stat_loggers
    given = [(number % 2, report(num_tokens=number)) for number in range(200)]
    for index, stats in given:
        made.record(stats, index)
    eventually(lambda: len(kept.told) == 200)
    assert [(index, iteration) for index, _, iteration in kept.told] == [(i, s.iteration) for i, s in given]


def test_a_logger_that_hangs_is_told_the_sum_later(loggers, monkeypatch):
    """Counts are exact however long it takes; memory is bounded."""
    made = loggers(Kept, engine_indexes=(0, 1))
    (kept,) = made.stat_loggers
    kept.gate.clear()
    for number in range(6000):
        made.record(
            report(
                num_prompt=2,
                num_cached=3,
                num_tokens=number,
                running=number,
                lookups=(1, 5, 3),
                inter_token_latencies_iter=[0.5, 0.25],
                finished_requests=[finished(number)],
                spec_decoding_stats=SpecDecodingStats(num_drafts=1, num_accepted_tokens_per_pos=[1, 0, 1]),
            ),
            number % 2,
        )
        made.record_admission_rejection("queue")
    time.sleep(0.05)
    kept.gate.set()
    eventually(lambda: len(kept.rejections) == 6000)
    assert len(kept.told) < 600
    for engine in (0, 1):
        own = [(scheduler, iteration) for index, scheduler, iteration in kept.told if index == engine]
        iterations = [iteration for _, iteration in own]
        assert sum(each.num_generation_tokens for each in iterations) == sum(range(engine, 6000, 2))
        assert sum(each.prompt_token_stats.computed for each in iterations) == 2 * 3000
        assert sum(each.num_prompt_tokens for each in iterations) == 5 * 3000
        assert sum(each.prefix_cache_stats.hits for each, _ in own) == 3 * 3000
        assert [each.request_id for i in iterations for each in i.finished_requests] == [
            str(number) for number in range(engine, 6000, 2)
        ]
        positions = [each.spec_decoding_stats.num_accepted_tokens_per_pos for each, _ in own]
        assert [sum(column) for column in zip(*positions, strict=True)] == [3000, 0, 3000]
        assert own[-1][0].num_running_reqs == 5998 + engine


def test_a_sum_keeps_a_bounded_number_of_latencies():
    total = nothing()
    for _ in range(100):
        add(total, report(num_tokens=100, inter_token_latencies_iter=[0.1] * 100))
    assert len(total.iteration.inter_token_latencies_iter) == 8192
    assert total.iteration.num_generation_tokens == 10_000


def test_closing_takes_in_what_is_left_and_waits_for_nobody_who_hangs(loggers):
    made = loggers(Kept, Kept, Kept)
    quick, *hanging = made.stat_loggers
    for each in hanging:
        each.gate.clear()
    made.record(report(num_tokens=1))
    started = time.monotonic()
    made.close()
    assert time.monotonic() - started < 2.5
    assert len(quick.told) == 1
    for each in hanging:
        each.gate.set()


def calls_of(function):
    """How many calls of functions it makes in this thread: what it costs, whatever else the machine does."""
    num_calls = 0

    def count(frame, event, arg):
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return num_calls


def test_a_logger_that_hangs_costs_a_step_no_more_however_much_waits(loggers):
    made = loggers(Kept)
    (kept,) = made.stat_loggers
    kept.gate.clear()
    made.record(report(num_tokens=1))
    eventually(lambda: not made._feeds[0]._reports)  # it hangs in there now, and takes nothing more
    costs = [calls_of(lambda: made.record(report(num_tokens=1))) for _ in range(1000)]
    assert max(costs[:200]) <= 60 and max(costs[900:]) <= 400
    assert costs[500:750] == costs[750:]
    kept.gate.set()
    made.close()
    assert sum(iteration.num_generation_tokens for *_, iteration in kept.told) == 1001


def test_a_logger_that_raises_is_called_once_and_costs_nothing_afterwards(loggers):
    threads = []

    class Raising(Kept):
        def record(self, *args, **options):
            threads.append(threading.current_thread())
            raise OSError("disk full")

    made = loggers(Raising)
    made.record(report(num_tokens=1))
    eventually(lambda: made._feeds[0]._failed and not made._feeds[0]._reports)
    one = report(num_tokens=1)
    assert {calls_of(lambda: made.record(one)) for _ in range(1000)} == {calls_of(lambda: made.record(one))}
    assert calls_of(lambda: made.record(one)) < 10
    assert len(threads) == 1 and threads[0] is not threading.current_thread()
    assert made._feeds[0]._reports == [] and made._feeds[0]._sums == {}


def test_routes_are_gathered_and_a_logger_that_cannot_say_has_none(loggers, caplog):
    class Routed(Kept):
        def routes(self):
            return ["/metrics"]

    class Lost(Kept):
        def routes(self):
            raise KeyError("x")

    assert loggers(Kept, Routed, Lost).routes() == ["/metrics"]
    assert "Stat logger" in caplog.text and "Lost' raised KeyError" in caplog.text


def test_loggers_hear_of_plugins(loggers, site):
    site.install("dist-a", {GROUP: {"good": "s_four:Good"}}, s_four=PLUGINS)
    (kept, _) = loggers(Kept).stat_loggers
    (found,) = kept.config.plugins()
    assert (found.name, found.state) == ("good", "loaded") and found.seconds > 0
    assert (kept.config.model_config.served_model_name, kept.config.cache_config.num_gpu_blocks) == ("m", 50)


@pytest.fixture
def lines(config, caplog, monkeypatch):
    """Tell a text logger reports, ten seconds apart from the last line; return the line it writes."""
    caplog.set_level(logging.INFO, "modulm")
    monkeypatch.setattr(logging.getLogger("modulm"), "propagate", True)
    clock = [100.0]
    monkeypatch.setattr("modulm.frontend.stat_lines.time.monotonic", lambda: clock[0])
    text = StatLines(config, 2)

    def write(*reports):
        caplog.clear()
        for each in reports:
            text.record(each.scheduler, each.iteration)
        clock[0] += 10
        text.log()
        return caplog.messages

    return write


def test_a_line_of_text_has_vllms_words(lines):
    reports = [
        report(100, 28, 0, running=1, waiting=5, usage=0.25, lookups=(1, 128, 28)),
        report(0, 0, 40, running=3, waiting=2, usage=0.5, lookups=(1, 128, 100), num_preempted_reqs=2),
    ]
    assert lines(*reports) == [
        "Engine 002: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 4.0 tokens/s, "
        "Running: 3 reqs, Waiting: 2 reqs, Preemptions: 2, KV cache usage: 50.0%, Prefix cache hit rate: 50.0%"
    ]
    deferred = lines(report(num_tokens=1, running=1, waiting=1, num_skipped_waiting_reqs=4))
    assert "Waiting: 5 reqs, Deferred: 4 reqs, KV" in deferred[0]


def test_an_idle_engine_writes_one_more_line_and_then_none(lines):
    assert lines() == []
    assert len(lines(report(num_tokens=5, running=1))) == 1
    (last,) = lines(report())
    assert "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs" in last
    assert lines() == [] and lines(report()) == []


def test_an_engine_that_is_stuck_says_so(lines):
    lines(report(num_tokens=5, running=1))
    assert [len(lines()), len(lines())] == [1, 1]


def test_the_hit_rate_is_that_of_recent_requests(lines):
    (line,) = lines(*[report(num_tokens=1, lookups=(500, 1000, 0))], *[report(lookups=(500, 1000, 500))] * 2)
    assert line.endswith("Prefix cache hit rate: 50.0%")
