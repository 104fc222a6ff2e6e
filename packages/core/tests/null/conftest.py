"""Fixtures of the torch-free tier: a made-up environment to install made-up plugins into."""

import base64
import hashlib
import importlib
import json
import logging
import os
import subprocess
import sys
from importlib import metadata

import pytest

from modulm import log
from modulm.plugins import bootstrap, builtin, choose, discovery, platforms, registry

BUILT_IN = """
class Model:
    def __init__(self, config=None): ...
    def forward(self, token_ids, batch): ...
    def compute_logits(self, hidden): ...
"""


class Site:
    """A folder on sys.path that stands for site-packages; `install` puts a distribution there, metadata and modules."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, distribution, entries=None, version="1.0", **modules):
        """Install `distribution` with {group: {name: value}} and modules given as text; returns its metadata folder."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = []
        for group, names in (entries or {}).items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)
        files = [info / "METADATA", info / "entry_points.txt", *(self.folder / f"{name}.py" for name in modules)]
        (info / "RECORD").write_text("".join(map(self._recorded, files)) + f"{info.name}/RECORD,,\n")
        self.forget()
        return info

    def _recorded(self, path):
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        return f"{path.relative_to(self.folder)},sha256={digest},{path.stat().st_size}\n"

    def forget(self):
        """Make everything as if this process had just started."""
        importlib.invalidate_caches()
        for part in (discovery, registry, bootstrap, platforms):
            part.reset()


@pytest.fixture(scope="session")
def new_site(tmp_path_factory):
    """Make folders to install into, for the command line to find: see `command`."""
    return lambda: Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="session")
def command():
    """Run `modulm plugins ...` in a process that finds what a site has; return (JSON or text, stderr, status)."""

    def run(site, *words, program=("-m", "modulm.cli", "plugins"), **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "MODULM_"))}
        paths = {
            "PYTHONPATH": str(site.folder),
            "MODULM_CACHE_DIR": str(site.folder.with_name(f"{site.folder.name}-cache")),
        }
        done = subprocess.run(
            [sys.executable, *program, *words],
            env={**kept, **paths, **variables}, cwd=site.folder, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return (
            json.loads(done.stdout) if "--json" in words and done.stdout else done.stdout,
            done.stderr,
            done.returncode,
        )

    return run


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
    (folder / "site_builtin.py").write_text(BUILT_IN)
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
