"""A made-up environment for made-up plugins, in this process."""

import importlib
import logging
import sys
from importlib import metadata

import pytest

from modulm.plugins import bootstrap, discovery, platforms, registry


class Site:
    """A folder on sys.path that stands for site-packages."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, group, entries, **modules):
        """Install a distribution of its own with entry points {name: value} of one group, and modules given as text."""
        info = self.folder / f"made_up_{len(list(self.folder.iterdir()))}-1.0.dist-info"
        info.mkdir()
        name = info.name.partition("-")[0].replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
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
    """An environment with no plugin but those that the test installs."""
    folder = tmp_path / "site"
    folder.mkdir()
    for variable in ("VLLM_PLUGINS", "MODULM_DISABLE_PLUGINS", "MODULM_STRICT_PLUGINS", "VLLM_TARGET_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    everywhere = metadata.distributions
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(metadata, "distributions", lambda: everywhere(path=[str(folder)]))
    for name in ("modulm", "vllm"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    before = set(sys.modules)
    made = Site(folder)
    made.forget()
    yield made
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    monkeypatch.undo()
    made.forget()
