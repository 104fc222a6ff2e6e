"""Fixtures of the torch-free tier: a made-up environment to install made-up plugins into."""

import importlib
import logging
import sys
from importlib import metadata

import pytest

from modulm import log
from modulm.plugins import bootstrap, builtin, choose, discovery, platforms, registry


class Site:
    """A folder on sys.path that stands for site-packages; `install` puts a distribution there, metadata and modules."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, distribution, entries=None, version="1.0", **modules):
        """Install `distribution` with {group: {name: value}} and modules given as text."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = []
        for group, names in (entries or {}).items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)
        self.forget()

    def forget(self):
        """Make everything as if this process had just started."""
        importlib.invalidate_caches()
        for part in (discovery, registry, bootstrap, platforms):
            part.reset()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An environment with no plugin but those the test installs, where built-in parts need no torch."""
    folder = tmp_path / "site"
    folder.mkdir()
    for variable in ("VLLM_PLUGINS", "MODULM_DISABLE_PLUGINS", "MODULM_STRICT_PLUGINS", "VLLM_TARGET_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    everywhere = metadata.distributions
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(metadata, "distributions", lambda: everywhere(path=[str(folder)]))
    monkeypatch.setitem(builtin.BUILTIN, "modulm.models", {"BuiltInForCausalLM": "site_builtin:Model"})
    (folder / "site_builtin.py").write_text("class Model:\n    forward = compute_logits = lambda self: None\n")
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setattr(choose, "_logged", set())
    monkeypatch.setattr(logging.getLogger("modulm"), "propagate", True)
    before = set(sys.modules)
    made = Site(folder)
    made.forget()
    yield made
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    monkeypatch.undo()
    made.forget()
