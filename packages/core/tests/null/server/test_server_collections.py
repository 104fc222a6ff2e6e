"""What a process has loaded is frozen before it serves: a collection would look at it, and every stream would wait."""

import gc
from types import SimpleNamespace

import pytest

from modulm import engine_process
from modulm.server import listener

LOADED = 20_000
"""Objects that a process with core and a tokenizer has at the least."""


@pytest.fixture(autouse=True)
def thawed():
    yield
    gc.unfreeze()


def looked_at():
    """Return how many objects a full collection looks at."""
    return len(gc.get_objects())


def test_the_front_ends_process(server, monkeypatch):
    seen = []
    monkeypatch.setattr(
        listener.Listener, "run", lambda self, sockets: seen.append((looked_at(), gc.get_freeze_count()))
    )
    listener.serve(server.app, server.llm, server.options, listener.bound_socket(server.options))
    ((left, frozen),) = seen
    assert frozen > LOADED and left < frozen / 10


def test_the_engines_process(monkeypatch):
    seen = []
    for name in ("resolve_all", "resolved_for_frontend", "made_of"):
        monkeypatch.setattr(engine_process, name, lambda *args: None)
    monkeypatch.setattr(engine_process, "build_engine", lambda resolution: ("engine", None))
    server = SimpleNamespace(
        say=lambda message: None, serve=lambda engine: seen.append((engine, looked_at(), gc.get_freeze_count()))
    )
    engine_process._load_and_serve(None, server)
    ((engine, left, frozen),) = seen
    assert engine == "engine" and frozen > LOADED and left < frozen / 10
