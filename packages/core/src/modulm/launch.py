"""Composition root: the only file that knows every room. Puts an engine together in this process.

Order matters: plugins first, so that all registries are full; then choices; then weights; then the straight line
frontend -> transport -> engine -> executor -> worker.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from modulm.config import EngineConfig
from modulm.engine.loop import Engine
from modulm.frontend.frontend import Frontend
from modulm.frontend.tokenizer import Tokenizer
from modulm.log import logger
from modulm.plugins.bootstrap import bootstrap
from modulm.plugins.hooks import load_logits_processors
from modulm.plugins.registry import registry
from modulm.resolve import Resolution, resolve, tokenizer_data
from modulm.transport.inprocess import InProcessClient
from modulm.worker.worker import Worker

_log = logger("launch")
Progress = Callable[[int, int], None]


@dataclass(kw_only=True)
class Launched:
    """A running engine and what it was made of."""

    frontend: Frontend
    resolution: Resolution
    worker: Worker
    seconds: float


def launch(config: EngineConfig, progress: Progress | None = None) -> Launched:
    """Build an engine in this process. `progress(done, total)` counts weights while they load.

    Raises `ConfigError`, `PluginError` or `CheckpointError`; nothing keeps running then.
    """
    started = time.perf_counter()
    bootstrap(config)
    resolution = resolve(config)
    processors = load_logits_processors(config.logits_processors)
    worker = Worker(
        config,
        resolution.model,
        checkpoint=resolution.checkpoint,
        model_class=resolution.model_class,
        scheme=resolution.scheme,
        kernels=resolution.kernels,
        attention=resolution.attention,
        platform=resolution.platform,
        logits_processors=processors,
        progress=progress,
        saved=resolution.saved,
        key=resolution.key,
    )
    if config.enable_prefix_caching and not worker.shares_prefixes:
        _log.warning("Prefix caching is off: this model's positions depend on the length of each sequence.")
        config = dataclasses.replace(config, enable_prefix_caching=False)
    executor = registry("modulm.executors").get(config.executor)(worker)
    engine = Engine(config, executor, max_model_len=resolution.model.max_model_len)
    frontend = Frontend(
        config,
        resolution.model,
        tokenizer=Tokenizer.from_data(tokenizer_data(config, resolution.checkpoint)),
        generation_config=resolution.generation_config,
        engine=InProcessClient(engine),
        logits_processors=processors,
    )
    seconds = time.perf_counter() - started
    _log.info("%s (%s) is ready after %.1f s.", config.model, resolution.architecture, seconds)
    return Launched(frontend=frontend, resolution=resolution, worker=worker, seconds=seconds)
