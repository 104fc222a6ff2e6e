"""The lock names no host and is the one for these requirements; the check notices when either stops being so."""

import tomllib

import pytest

import lock
from workspace import ROOT


def test_this_lock_is_current_and_names_no_host():
    assert lock.problems(ROOT) == []


WRITTEN = """
[[package]]
name = "tqdm"
version = "4.70.1"
source = { registry = "https://mirror.example/index" }
sdist = { url = "https://files.example/0b/7d/tqdm-4.70.1.tar.gz", hash = "sha256:00" }
wheels = [{ path = "/home/somebody/wheels/tqdm-4.70.1-py3-none-any.whl" }]

[[package]]
name = "torch"
source = { registry = "/home/somebody/wheels" }

[[package]]
name = "modulm-core"
source = { editable = "packages/core" }
"""


def test_every_place_becomes_neutral_and_nothing_else_changes():
    before, after = tomllib.loads(WRITTEN)["package"], tomllib.loads(lock.neutral(WRITTEN))["package"]
    assert lock.foreign_places(lock.neutral(WRITTEN)) == []
    assert after[0]["sdist"] == {"url": "https://index.invalid/files/tqdm-4.70.1.tar.gz", "hash": "sha256:00"}
    assert after[0]["version"] == before[0]["version"]
    assert after[2] == before[2]


@pytest.mark.parametrize(
    "place",
    [
        "https://mirror.example/index",
        "https://files.example/0b/7d/tqdm-4.70.1.tar.gz",
        '"/home/somebody/wheels"',
    ],
)
def test_a_place_is_found(place):
    assert place in lock.foreign_places(WRITTEN)


MEMBER = """
[[package]]
name = "modulm-quant-gguf"
[package.metadata]
requires-dist = [
  { name = "modulm-core", editable = "packages/core" },
  { name = "numpy", specifier = ">=1.26,<3" },
  { name = "uvicorn", extras = ["standard"], marker = "extra == 'serve'", specifier = ">=0.30" },
]
"""
ASKED = ["modulm-core>=0.1,<0.2", "numpy <3, >=1.26", "uvicorn[standard]>=0.30"]


def stale(requirements):
    return lock.stale_members(tomllib.loads(MEMBER), {"modulm-quant-gguf": requirements, "modulm-core": []})


def test_spelling_does_not_make_a_member_stale(monkeypatch):
    found = lock.stale_members(
        tomllib.loads(MEMBER + '[[package]]\nname = "modulm-core"\n'), {"modulm-quant-gguf": ASKED, "modulm-core": []}
    )
    assert found == []


@pytest.mark.parametrize(
    "requirements",
    [ASKED[:2], [*ASKED, "gguf>=0.17"], [*ASKED[:1], "numpy>=2", *ASKED[2:]], [*ASKED[:2], "uvicorn>=0.30"]],
    ids=["removed", "added", "other range", "other extras"],
)
def test_a_changed_requirement_makes_a_member_stale(requirements):
    (line,) = stale(requirements)
    assert line.startswith("modulm-quant-gguf: ")


def test_pip_settings_reach_uv_but_find_links_do_not():
    settings = {"PIP_INDEX_URL": "a", "PIP_EXTRA_INDEX_URL": "b", "UV_INDEX": "c", "PIP_FIND_LINKS": "d"}
    environment = lock._uv_environment(settings)
    assert environment["UV_DEFAULT_INDEX"] == "a"
    assert environment["UV_INDEX"] == "c"
    assert "UV_FIND_LINKS" not in environment
