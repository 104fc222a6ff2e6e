"""Conformance of stat loggers (`modulm.interfaces.metrics`): told anything that an engine reports, they go on.

A logger that raises is called no more, so what it has to take is all here. No torch, no engine: payloads are those of
`fakes.py`.
"""

import copy
import gc
import logging
import tracemalloc
from typing import Any, get_args

import pytest

from modulm.interfaces.metrics import AggregateStatLoggerBase, StatLoggerBase
from modulm.types import FinishReason
from modulm_testkit.fakes import finished_request, iteration_stats, logged_config, scheduler_stats
from modulm_testkit.routes import core_routes, routes_of
from modulm_testkit.suite import Conformance, ask_for

_REQUESTS = 300
_BYTES_EACH = 60
"""What a logger may keep of a request that has ended: nothing but a little noise."""


class StatLoggerConformance(Conformance):
    """Give `logger_class`: the class that the entry point of `vllm.stat_logger_plugins` names."""

    @pytest.fixture(name="logger_class")
    def _logger_class(self) -> Any:
        """Return the class."""
        ask_for("logger_class", "MyLogger")

    def test_may_be_asked_to_log_first(self, logger_class: Any) -> None:
        """`log_engine_initialized` comes first, and `log` every ten seconds, also when nothing has happened yet."""
        one = made(logger_class)
        one.log_engine_initialized()
        one.log()
        one.record(scheduler_stats(), iteration_stats())
        one.log()
        one.log()

    @pytest.mark.parametrize("finish_reason", get_args(FinishReason))
    @pytest.mark.parametrize("traced", [False, True])
    def test_takes_every_ending(self, logger_class: Any, finish_reason: Any, traced: bool) -> None:
        """A request may end for any reason, with or without its parameters and headers."""
        made(logger_class).record(
            scheduler_stats(), iteration_stats([finished_request("r", finish_reason, traced=traced)])
        )

    def test_takes_steps_without_statistics(self, logger_class: Any) -> None:
        """Either half of a report may be missing, and drafts are there only where tokens are drafted."""
        one = made(logger_class)
        one.record(None, None)
        one.record(scheduler_stats(drafts=False), None)
        one.record(None, iteration_stats())
        one.record(scheduler_stats(drafts=True), iteration_stats())

    def test_takes_keywords(self, logger_class: Any) -> None:
        """`record` is called with `mm_cache_stats` and `engine_idx` by keyword."""
        made(logger_class).record(scheduler_stats(), iteration_stats(), mm_cache_stats=None, engine_idx=0)

    def test_serves_several_engines(self, logger_class: Any) -> None:
        """An aggregate is told which engine a report is of; any other logger is made once for each engine."""
        if issubclass(logger_class, AggregateStatLoggerBase):
            both = made(logger_class, 0, 1)
            for index in (1, 0):
                both.record(scheduler_stats(), iteration_stats(), None, index)
        else:
            for index in (0, 1):
                made(logger_class, index).record(scheduler_stats(), iteration_stats(), None, index)

    def test_lives_beside_another(self, logger_class: Any) -> None:
        """Two engines in one process have two loggers, which must not meet in a registry of the whole process.

        What breaks it: prometheus_client's default registry, which refuses a name the second time.
        """
        loggers = [made(logger_class) for _ in range(2)]
        for one in loggers:
            one.log_engine_initialized()
            one.record(scheduler_stats(), iteration_stats([finished_request()]))

    def test_leaves_statistics_as_they_are(self, logger_class: Any) -> None:
        """Reports are only read: every logger gets the same objects."""
        reports = scheduler_stats(), iteration_stats([finished_request("a"), finished_request("b", "length")])
        before = copy.deepcopy(reports)
        made(logger_class).record(*reports)
        assert reports == before

    def test_takes_sleep_and_waking(self, logger_class: Any) -> None:
        """The engine may sleep at either level, and wake."""
        one = made(logger_class)
        for is_awake, level in ((1, 1), (0, 0), (1, 2), (0, 0)):
            one.record_sleep_state(is_awake, level)

    def test_takes_any_rejection(self, logger_class: Any) -> None:
        """An aggregate is told why a request was turned away; there may be limits that it has never heard of."""
        if not issubclass(logger_class, AggregateStatLoggerBase):
            pytest.skip("loggers for one engine are not told of rejections")
        one: Any = made(logger_class)
        for reason in ("max_queued_requests", "max_queued_tokens", "a limit of next year"):
            one.record_admission_rejection(reason)

    def test_offers_routes_of_its_own(self, logger_class: Any) -> None:
        """`routes` returns Starlette routes, none of which core serves itself: `/metrics` it leaves open."""
        routes = made(logger_class).routes()
        assert all(getattr(route, "path", "").startswith("/") for route in routes), f"{routes!r} are no routes"
        taken = routes_of(routes) & (core_routes() - {("GET", "/metrics")})
        assert not taken, f"{sorted(taken)} are served by core"

    def test_forgets_requests(self, logger_class: Any) -> None:
        """Memory does not grow with the number of requests: ids and times are not kept, nor made into labels."""
        one = made(logger_class)

        def serve(first: int) -> None:
            for number in range(first, first + _REQUESTS):
                one.record(scheduler_stats(), iteration_stats([finished_request(f"request-{number:012}")]))
                if number % 50 == 0:
                    one.log()

        logging.disable()  # pytest keeps what is logged
        tracemalloc.start()
        held = []
        try:
            for first in (0, _REQUESTS):
                serve(first)
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
            logging.disable(logging.NOTSET)
        kept = held[1] - held[0]
        assert kept < _BYTES_EACH * _REQUESTS, f"{kept / _REQUESTS:.0f} bytes are kept of every request"


def made(logger_class: Any, *engine_indexes: int) -> StatLoggerBase:
    """Construct a logger as the front end does: an aggregate by keyword, others by position."""
    indexes = list(engine_indexes or (0,))
    if issubclass(logger_class, AggregateStatLoggerBase):
        return logger_class(vllm_config=logged_config(), engine_indexes=indexes)
    one: StatLoggerBase = logger_class(logged_config(), indexes[0])
    return one
