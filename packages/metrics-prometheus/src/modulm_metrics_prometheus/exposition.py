"""How a scrape is answered: the route /metrics, and what is only known when it is asked for. Knows no statistics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from modulm.interfaces.metrics import LoggedCache, PluginLoad

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PluginLoads(Collector):
    """`modulm:plugin_load_seconds`: what importing each plugin took. One that is not loaded yet has no sample."""

    def __init__(self, plugins: Callable[[], Sequence[PluginLoad]]) -> None:
        self._plugins = plugins

    def collect(self) -> Iterable[Any]:
        """Return the metric as things stand now."""
        family = GaugeMetricFamily(
            "modulm:plugin_load_seconds",
            "Time that importing a plugin took, by plugin and what became of it.",
            labels=["plugin", "state"],
        )
        sums: dict[tuple[str, str], float] = {}
        for each in self._plugins():
            if each.seconds is not None:  # one name may stand in several groups
                key = (each.name, each.state)
                sums[key] = sums.get(key, 0.0) + each.seconds
        for labels, seconds in sums.items():
            family.add_metric(labels, seconds)
        yield family

    def describe(self) -> Iterator[Any]:
        """Nothing in advance: registering the collector asks no plugin."""
        return iter(())


def cache_info(registry: CollectorRegistry, cache: LoggedCache, engine_indexes: Sequence[int]) -> None:
    """Export the KV cache's settings as labels of a gauge that is 1."""
    settings = {name: str(value) for name, value in asdict(cache).items()}
    info = Gauge("vllm:cache_config_info", "Settings of the KV cache.", [*settings, "engine"], registry=registry)
    for index in engine_indexes:
        info.labels(**settings, engine=str(index)).set(1)


def route(registry: CollectorRegistry) -> Any:
    """Return the route /metrics, for Starlette and FastAPI.

    Its function is no coroutine, so it runs in a thread, and streams go on while a scrape is written. The answer is
    Prometheus' text format whatever was asked for: the library's OpenMetrics turns the colons of names into
    underscores for most servers that ask for it.
    """
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": _CONTENT_TYPE})

    return Route("/metrics", metrics, include_in_schema=False)
