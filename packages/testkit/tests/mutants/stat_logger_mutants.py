"""Stat loggers that are wrong in one way each."""

from contract import Contract
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from modulm.interfaces.metrics import AggregateStatLoggerBase, StatLoggerBase
from modulm_testkit.stat_logger import StatLoggerConformance


def answer(request):
    return PlainTextResponse("")


class Counts(AggregateStatLoggerBase):
    """For all engines."""

    def __init__(self, vllm_config, engine_indexes):
        self.steps = dict.fromkeys(engine_indexes, 0)
        self.rejections = {}

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.steps[engine_idx] += 1
        for ended in iteration_stats.finished_requests if iteration_stats else ():
            self.ended(ended)

    def ended(self, stats):
        pass

    def log_engine_initialized(self):
        pass

    def record_admission_rejection(self, reason):
        self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def routes(self):
        return [Route("/metrics", answer), Route("/counts", answer)]


class CountsOne(StatLoggerBase):
    """For one engine."""

    def __init__(self, vllm_config, engine_index=0):
        self.index, self.steps = engine_index, 0

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        assert engine_idx == self.index
        self.steps += 1

    def log_engine_initialized(self):
        pass


stat_logger = Contract("stat_logger", StatLoggerConformance, "logger_class", Counts)
stat_logger.also("for one engine", CountsOne)
mutant = stat_logger.mutant


@mutant("test_may_be_asked_to_log_first")
class Averages(Counts):
    """`log` divides by the number of steps."""

    def log(self):
        return 1 / sum(self.steps.values())


@mutant("test_takes_every_ending")
class KnowsThreeEndings(Counts):
    """A request that ended with an error raises KeyError."""

    def ended(self, stats):
        {"stop": 0, "length": 0, "abort": 0}[stats.finish_reason]


@mutant("test_takes_steps_without_statistics")
class NeedsBothHalves(Counts):
    """A report without scheduler statistics raises."""

    def record(self, scheduler_stats, iteration_stats, *rest, **options):
        super().record(scheduler_stats, iteration_stats, *rest, **options)
        return scheduler_stats.num_running_reqs


@mutant("test_takes_keywords")
class NamesTheEngineItsOwnWay(Counts):
    """The engine's number is called engine_index."""

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_index=0):
        super().record(scheduler_stats, iteration_stats, mm_cache_stats, engine_index)


@mutant("test_serves_several_engines")
class KnowsOneEngine(Counts):
    """Only the first engine's reports are taken."""

    def __init__(self, vllm_config, engine_indexes):
        super().__init__(vllm_config, engine_indexes[:1])


@mutant("test_lives_beside_another")
class RegistersInTheProcess(Counts):
    """Names are registered for the whole process, and refused the second time."""

    names = set()

    def log_engine_initialized(self):
        if len(self.names) > 1:
            raise ValueError("Duplicated timeseries: steps")
        self.names.add(len(self.names))


@mutant("test_leaves_statistics_as_they_are")
class TakesRequestsOut(Counts):
    """Requests that have ended are taken out of the report."""

    def record(self, scheduler_stats, iteration_stats, *rest, **options):
        super().record(scheduler_stats, iteration_stats, *rest, **options)
        if iteration_stats:
            iteration_stats.finished_requests.clear()


@mutant("test_takes_sleep_and_waking")
class KnowsOneLevel(Counts):
    """Sleep at level 2 raises IndexError."""

    def record_sleep_state(self, is_awake, level):
        return ["awake", "asleep"][level]


@mutant("test_takes_any_rejection")
class KnowsTwoLimits(Counts):
    """A limit that it does not know raises KeyError."""

    def record_admission_rejection(self, reason):
        return {"max_queued_requests": 0, "max_queued_tokens": 1}[reason]


@mutant("test_offers_routes_of_its_own")
class OffersPaths(Counts):
    """Routes are given as strings."""

    def routes(self):
        return ["/metrics"]


@mutant("test_forgets_requests")
class LabelsByRequest(Counts):
    """Every request's id is kept as a label."""

    def __init__(self, vllm_config, engine_indexes):
        super().__init__(vllm_config, engine_indexes)
        self.seen = {}

    def ended(self, stats):
        self.seen[stats.request_id] = [stats.e2e_latency]
