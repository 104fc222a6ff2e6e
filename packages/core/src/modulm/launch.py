"""Composition root: the only file that knows every room. Puts an engine together, in one process or in two.

Order matters: plugins first, so that all registries are full; then choices; then weights; then the straight line
frontend -> transport -> engine -> executor -> worker. `engine_process.py` puts the wall of the transport between two
processes.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from modulm.config import EngineConfig, ModelConfig
from modulm.engine.grammar import Grammars
from modulm.engine.loop import Engine
from modulm.frontend.defaults import eos_token_ids
from modulm.frontend.detokenize import token_bytes
from modulm.frontend.frontend import Frontend
from modulm.frontend.parse import check_parsers
from modulm.frontend.tokenizer import LateTokenizer, Tokenizer
from modulm.interfaces.structured import Vocabulary
from modulm.interfaces.support import Rejected, Support
from modulm.log import logger
from modulm.plugins.bootstrap import bootstrap, load_records
from modulm.plugins.choose import Choice, make
from modulm.plugins.hooks import load_logits_processors
from modulm.plugins.report import as_objects, loaded_line
from modulm.reference.host_memory import give_back_freed
from modulm.resolve import Resolution, resolve, tokenizer_data
from modulm.transport.client import EngineClient, WatchedClient
from modulm.transport.codec import Ready, Resolved
from modulm.transport.inprocess import InProcessClient, ThreadClient
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


@dataclass(kw_only=True)
class Serving:
    """A running engine that need not be in this process, and what it said of itself."""

    frontend: Frontend
    client: WatchedClient
    config: EngineConfig
    model: ModelConfig
    ready: Ready


def launch(config: EngineConfig, progress: Progress | None = None) -> Launched:
    """Build an engine in this process. `progress(done, total)` counts weights while they load.

    Raises `ConfigError`, `PluginError` or `CheckpointError`; nothing keeps running then.
    """
    started = time.perf_counter()
    resolution = resolve_all(config)
    tokenizer = _tokenizer(resolution)
    engine, worker = build_engine(resolution, progress)
    frontend = build_frontend(resolution, tokenizer, InProcessClient(engine))
    give_back_freed()
    seconds = time.perf_counter() - started
    _log.info("%s (%s) is ready after %.1f s.", config.model, resolution.architecture, seconds)
    return Launched(frontend=frontend, resolution=resolution, worker=worker, seconds=seconds)


def launch_thread(config: EngineConfig, *, reports: bool) -> Serving:
    """Build an engine in this process, to be polled by a thread of its own; raises as `launch` does."""
    resolution = resolve_all(config)
    tokenizer = Tokenizer.from_data(tokenizer_data(resolution.config, resolution.checkpoint))
    engine, worker = build_engine(resolution)
    client = ThreadClient(engine, reports=reports)
    frontend = build_frontend(resolution, tokenizer, client)
    give_back_freed()
    config, model = resolution.config, resolution.model
    return Serving(frontend=frontend, client=client, config=config, model=model, ready=made_of(resolution, worker))


def resolve_all(config: EngineConfig) -> Resolution:
    """Load plugins and make every choice that needs no tensors."""
    bootstrap(config)
    check_parsers(config)
    return resolve(config)


def resolved_for_frontend(resolution: Resolution) -> Resolved:
    """Return what a front end must know of the choices."""
    return Resolved(
        config=resolution.config,
        model=resolution.model,
        generation_config=resolution.generation_config,
        tokenizer=tokenizer_data(resolution.config, resolution.checkpoint),
    )


def build_engine(resolution: Resolution, progress: Progress | None = None) -> tuple[Engine, Worker]:
    """Load the weights and return the engine, ready to step, and its worker."""
    config = resolution.config
    worker = Worker(
        config,
        resolution.model,
        checkpoint=resolution.checkpoint,
        model_class=resolution.model_class,
        scheme=resolution.scheme,
        kernels=resolution.kernels,
        attention=resolution.attention,
        platform=resolution.platform,
        logits_processors=load_logits_processors(config.logits_processors),
        progress=progress,
        saved=resolution.saved,
        speculation=resolution.speculation,
        key=resolution.key,
    )
    if config.enable_prefix_caching and not worker.shares_prefixes:
        _log.warning("Prefix caching is off: this model's positions depend on the length of each sequence.")
        config = dataclasses.replace(config, enable_prefix_caching=False)
    executor = make("modulm.executors", config.executor, worker)
    name_plugins("engine")
    grammars = Grammars(lambda: _vocabulary(resolution), backend=config.structured_output_backend)
    return Engine(config, executor, max_model_len=resolution.model.max_model_len, grammars=grammars), worker


def _vocabulary(resolution: Resolution) -> Vocabulary:
    """Read the tokenizer where the engine is: most engines never serve a request with a form."""
    tokenizer = Tokenizer.from_data(tokenizer_data(resolution.config, resolution.checkpoint))
    size = resolution.model.vocab_size
    tokens = [
        b"" if token_id in tokenizer.special_ids else token_bytes(tokenizer, token_id)
        for token_id in range(min(size, tokenizer.vocab_size))
    ]
    return Vocabulary(
        tokens=tokens,
        size=size,
        special_ids=sorted(each for each in tokenizer.special_ids if each < size),
        eos_token_ids=eos_token_ids(tokenizer, resolution.generation_config, resolution.model),
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def name_plugins(side: str) -> None:
    """Log which plugins this process has loaded so far, with versions."""
    if line := loaded_line(load_records()):
        _log.info("Plugins of the %s: %s.", side, line)


def _tokenizer(resolution: Resolution) -> Tokenizer:
    """Return a tokenizer that is built at once only where somebody named it, or an engine cannot start without it."""
    config, checkpoint = resolution.config, resolution.checkpoint
    eos = checkpoint.tokenizer_eos_ids() if config.tokenizer is None else None

    def build() -> Tokenizer:
        tokenizer = Tokenizer.from_data(tokenizer_data(config, checkpoint))
        give_back_freed()
        return tokenizer

    return build() if eos is None else LateTokenizer(build, next(iter(eos), None))


def build_frontend(resolved: Resolved | Resolution, tokenizer: Tokenizer, client: EngineClient) -> Frontend:
    """Return the front end of an engine that is reached through `client`."""
    return Frontend(
        resolved.config,
        resolved.model,
        tokenizer=tokenizer,
        generation_config=resolved.generation_config,
        engine=client,
        logits_processors=load_logits_processors(resolved.config.logits_processors),
    )


def made_of(resolution: Resolution, worker: Worker) -> Ready:
    """Return what an engine says of itself once it can step."""
    num_kv_blocks = worker.kv_layout().num_blocks
    return Ready(explained=explain(resolution, worker), plugins=as_objects(load_records()), num_kv_blocks=num_kv_blocks)


def explain(resolution: Resolution, worker: Worker) -> dict[str, Any]:
    """Return every choice with each candidate's answer, and the worker's figures, as plain data."""
    return {"choices": explained(resolution.choices), "worker": worker.describe()}


def explained(choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """Return choices as plain data."""
    return [
        {"family": choice.family, "chosen": choice.name, "candidates": [_answer(*entry) for entry in choice.trace]}
        for choice in choices
    ]


def _answer(name: str, answer: Support) -> dict[str, Any]:
    reason = answer.reason if isinstance(answer, Rejected) else answer.note
    return {"name": name, "accepted": bool(answer), "reason": reason}
