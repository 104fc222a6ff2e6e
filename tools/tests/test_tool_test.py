"""`test.py` runs one process per package and tier, adds up what pytest says, and fails when any suite does."""

import subprocess
import sys

import pytest

import test as testing
from workspace import ROOT


def write(root, path, body):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(body)


def test_tiers_come_in_order_and_empty_folders_are_left_out(workspace_root):
    write(workspace_root, "packages/core/tests/cpu/test_a.py", "")
    write(workspace_root, "packages/quant-gguf/tests/null/test_b.py", "")
    write(workspace_root, "packages/core/tests/gpu/notes.md", "")
    write(workspace_root, "integration_tests/test_c.py", "")
    found = testing.suites(workspace_root, list(testing.TIERS), [])
    assert [(s.tier, s.path.relative_to(workspace_root).parts[0]) for s in found] == [
        ("null", "packages"),
        ("cpu", "packages"),
        ("integration", "integration_tests"),
    ]
    (only,) = testing.suites(workspace_root, list(testing.TIERS), ["quant-gguf"])
    assert only.tier == "null"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("....\n12 passed, 3 skipped in 0.52s\n", {"passed": 12, "skipped": 3}),
        ("=== 1 failed, 2 passed, 2 errors in 61.00s (0:01:01) ===\n", {"failed": 1, "passed": 2, "error": 2}),
        ("says: 3 passed the gate\n\x1b[32m1 passed\x1b[0m in 0.01s\n", {"passed": 1}),
        ("Killed\n", {}),
    ],
)
def test_counts_of_a_closing_line(output, counts):
    assert testing.closing_counts(output)[1] == counts


def test_cuts_of_all_suites_are_added_up(tmp_path):
    said = ["parser invariants: 1,234 cuts over 5 parsers\n1 passed in 1s\n", "1 passed in 1s\n"]
    said.append("says parser invariants: 7 cuts\nparser invariants: 66 cuts over 1 parsers\n")
    done = [
        testing.Suite(tier="null", path=ROOT / name, cuts=testing.cuts(text))
        for name, text in zip("abc", said, strict=True)
    ]
    assert "\nparser invariants: 1,300 cuts\n" in testing.summary(done)
    assert "invariants" not in testing.summary(done[1:2])


@pytest.mark.parametrize(
    ("body", "status", "closing"),
    [
        ("def test_a(): pass\n", 0, "1 passed, 0 failed, 0 skipped"),
        ("def test_a(): pass\ndef test_b(): assert False\n", 1, "1 passed, 1 failed, 0 skipped"),
        ("import os\ndef test_a(): os._exit(3)\n", 1, "0 passed, 1 failed, 0 skipped"),
    ],
    ids=["passes", "fails", "dies"],
)
def test_whole_run(workspace_root, body, status, closing):
    write(workspace_root, "packages/core/tests/null/test_a.py", body)
    for name in ("test.py", "workspace.py"):
        write(workspace_root, f"tools/{name}", (ROOT / "tools" / name).read_text())
    done = subprocess.run([sys.executable, "tools/test.py"], cwd=workspace_root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == closing
    assert done.returncode == status


def test_suites_can_be_interrupted_where_the_tool_cannot(workspace_root):
    body = "import signal\ndef test_a(): assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    write(workspace_root, "packages/core/tests/null/test_a.py", body)
    for name in ("test.py", "workspace.py"):
        write(workspace_root, f"tools/{name}", (ROOT / "tools" / name).read_text())
    command = f"{sys.executable} tools/test.py & wait $!"  # without job control
    done = subprocess.run(["sh", "-c", command], cwd=workspace_root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_large_suite_is_shared_out_and_every_test_runs_once(workspace_root):
    for number in range(testing.MANY_FILES):
        write(workspace_root, f"packages/core/tests/null/test_{number}.py", "def test_a(): pass\ndef test_b(): pass\n")
    (suite,) = testing.suites(workspace_root, ["null"], [])
    assert testing.sharing(suite, 2) == ["-n", "2", "--dist", "loadfile"]
    assert testing.sharing(suite, 1) == []
    for name in ("test.py", "workspace.py"):
        write(workspace_root, f"tools/{name}", (ROOT / "tools" / name).read_text())
    command = [sys.executable, "tools/test.py", "--jobs", "2"]
    done = subprocess.run(command, cwd=workspace_root, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"{2 * testing.MANY_FILES} passed, 0 failed, 0 skipped"


def test_a_small_suite_is_one_process(workspace_root):
    write(workspace_root, "packages/core/tests/null/test_a.py", "")
    assert testing.sharing(testing.suites(workspace_root, ["null"], [])[0], 2) == []
